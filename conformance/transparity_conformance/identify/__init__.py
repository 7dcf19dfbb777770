"""Match the activations, tensors and configuration of a port with the reference."""
