"""Capabilities of a model that learns: loss, gradients and training."""
