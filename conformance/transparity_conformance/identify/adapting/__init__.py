"""Find the adapter of a model with its own parameter names.

One run of the model is recorded. The parameters of the model are then matched in the order of the forward pass.
"""
