"""Faster computations of the same results: linear maps in a faster layout, and batches distributed over cores or
devices."""
