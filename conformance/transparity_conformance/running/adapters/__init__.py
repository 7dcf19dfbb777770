"""Adapters: a file that maps the reference's parameters to a model's tensors, and a model with readable tensors."""
