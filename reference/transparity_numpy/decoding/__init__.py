"""Decoding: cached steps, sampling and beam search."""
