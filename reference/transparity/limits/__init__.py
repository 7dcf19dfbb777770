"""Limits: the memory that is free, and the files that may be read."""
