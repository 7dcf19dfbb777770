"""Norms, which differ in the divisor, the position of eps, and whether and over which axes they subtract the mean."""
