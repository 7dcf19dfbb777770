"""Match the values of a port with those of the reference: activations, tensors and configurations."""
