"""Comparisons besides one forward pass: other sizes, repeated calls, cached steps, generation, losses, gradients."""
