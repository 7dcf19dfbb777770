"""Norms, which differ in their divisor, in the axes of the mean, and in the position of eps."""
