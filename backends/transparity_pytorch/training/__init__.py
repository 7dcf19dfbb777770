"""The loss, its gradients, and the step of an optimizer."""
