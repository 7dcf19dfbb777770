"""Capabilities of a model that generates tokens: generation, beam search and decoding with a cache."""
