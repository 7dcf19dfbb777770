"""Find the adapter of a model, whose parameters may have any names.

The model is recorded in one run. Its tensors are then matched with the reference's parameters, in the order of the
forward pass.
"""
