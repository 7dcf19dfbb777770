"""Norms: they differ in the divisor, in the position of eps, and in the axes over which they subtract a mean, if any."""
