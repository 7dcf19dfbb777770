"""Capabilities of a port besides its forward pass: loss, gradients, generation, beam search, steps and training."""
