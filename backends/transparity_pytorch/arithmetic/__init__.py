"""Sums in higher precision, rounding, softcap, dropout, fused attention."""
