"""Find the adapter of a model with its own parameter names.

One run of the model is recorded. Its parameters are then matched in the order of the forward pass.
"""
