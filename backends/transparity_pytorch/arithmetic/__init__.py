"""Arithmetic below the level of a textbook: wide sums, rounding, softcap, dropout, fused attention."""
