"""Recognize parts of a model by the values of its operations."""
