"""The transformer in NumPy, in plain functions: the specification of the other two columns.

`transparity_pytorch` and `transparity_flax` have the same files, names and order. `arithmetic.functional` has the
primitives that the frameworks provide. `port` is the entry point.
"""
