"""Derivatives of the loss, with which a port's gradients are compared."""
