"""Capabilities of a model that learns: its loss, gradients and training."""
