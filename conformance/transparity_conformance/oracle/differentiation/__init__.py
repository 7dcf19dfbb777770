"""Derivatives of the loss, with which the checker compares a port's gradients."""
