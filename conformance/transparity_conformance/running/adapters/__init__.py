"""Adapters: a file that says where a model keeps our parameters, and a model whose tensors are read and written."""
