"""Capabilities of models that generate tokens: generation, beam search and decoding with a cache."""
