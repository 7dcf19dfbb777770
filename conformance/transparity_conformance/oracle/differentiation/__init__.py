"""Derivatives of the loss, against which gradients are judged."""
