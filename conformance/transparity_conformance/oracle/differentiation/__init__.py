"""Derivatives of the loss; a port's gradients are compared with them."""
