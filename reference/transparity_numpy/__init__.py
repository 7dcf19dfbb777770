"""The NumPy column: the specification of the transformer, in plain functions.

Files, names and order are those of `transparity_pytorch` and `transparity_flax`. `functional` has the primitives that
the frameworks provide; `port` is the entry point.
"""
