"""The NumPy column: the specification of the transformer, in plain functions.

`transparity_pytorch` and `transparity_flax` have the same files, names and order. `functional` has the primitives that
the frameworks provide; `port` is the entry point.
"""
