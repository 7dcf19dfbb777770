"""Activations and other primitives, sums in higher precision, rounding, softcap, dropout, fused attention."""
