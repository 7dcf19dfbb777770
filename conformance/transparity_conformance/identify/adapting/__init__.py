"""Find the adapter of a model, whose parameters may have any names.

The search records one run of the model. Then the search finds the tensor of each parameter, in the order of the forward
pass.
"""
