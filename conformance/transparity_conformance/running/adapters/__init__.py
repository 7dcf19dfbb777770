"""Adapters: files that map the reference's parameters to the tensors of a model; and models with readable tensors."""
