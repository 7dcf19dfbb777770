"""Capabilities of a model besides its forward pass: loss, gradients, generation, beams, cached steps and training."""
