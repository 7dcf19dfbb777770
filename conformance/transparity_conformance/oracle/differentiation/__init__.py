"""Derivatives of the loss in the reference, to check a port's gradients."""
