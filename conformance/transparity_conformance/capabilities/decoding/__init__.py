"""Capabilities of a model that writes: generation, beams and cached decoding."""
