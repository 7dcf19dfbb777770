"""Norms, one a file, and the table that chooses. They differ in the deviation, its axes, and the position of eps."""
