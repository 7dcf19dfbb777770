"""Arithmetic that no textbook writes out, and the functions that the frameworks provide."""
