"""Norms: they differ in the divisor, in the position of eps, and in the axes (if any) whose mean they subtract."""
