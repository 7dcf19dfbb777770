"""Comparisons besides one forward pass: sizes, repeated calls, cached steps, generation, losses, gradients."""
