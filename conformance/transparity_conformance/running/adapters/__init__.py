"""Adapters, which are files that map the reference's parameters to a model's tensors; and access to these tensors."""
