"""Derivatives of the loss, by which gradients are judged."""
