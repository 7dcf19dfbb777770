"""Arithmetic: sums in at least float32, rounding, softcap, dropout, and fused attention."""
