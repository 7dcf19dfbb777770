"""Comparisons of other calls than the forward pass: sizes, repeats, cached steps, generation, losses, gradients."""
