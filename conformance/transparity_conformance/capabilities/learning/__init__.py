"""Capabilities of models that learn: losses, gradients and training."""
