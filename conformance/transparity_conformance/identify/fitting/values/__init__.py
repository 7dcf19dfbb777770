"""Find parts of a model among the values of its operations."""
