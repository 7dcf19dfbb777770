"""Find the adapter of a model that has its own names of parameters.

One run of the model is recorded. The model's tensors are then matched with parameters in forward-pass order.
"""
