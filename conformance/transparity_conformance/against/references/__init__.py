"""References of each framework, recorded as programs of PyTorch operations."""
