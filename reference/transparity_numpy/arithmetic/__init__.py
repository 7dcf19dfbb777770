"""Arithmetic: activation functions and other primitives, sums in at least float32, rounding, dropout, fused
attention."""
