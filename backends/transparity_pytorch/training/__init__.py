"""Training: the loss, its gradients, and optimizers."""
