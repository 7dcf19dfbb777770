"""Layers: a mixer and a feed-forward with their residuals, sequential or parallel."""
