"""Capabilities: what a port may do besides its forward pass, such as losses, gradients, generation and training."""
