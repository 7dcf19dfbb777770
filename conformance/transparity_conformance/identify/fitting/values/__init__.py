"""Parts of a model, found among the values of its operations."""
