"""Arithmetic below the level of a textbook, and the functions that the frameworks provide."""
