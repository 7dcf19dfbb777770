"""The outputs of a model."""
