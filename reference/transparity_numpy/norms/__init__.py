"""Norms, one per file. They differ in the divisor, in the axes of the mean, and in the position of eps."""
