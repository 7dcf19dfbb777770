"""Find out which of a port's tensors, operations and settings correspond to parts of the reference."""
