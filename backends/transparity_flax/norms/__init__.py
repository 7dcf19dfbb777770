"""Norms, one per file, and the table that selects one. They differ in the deviation, its axes, and the position of
eps."""
