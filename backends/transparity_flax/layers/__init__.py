"""Layers: a mixer and a feed-forward with their residuals, one after the other or side by side."""
