"""Arithmetic that no textbook writes out: wide sums, rounding, a softcap, dropout, attention in one pass."""
