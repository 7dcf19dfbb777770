"""Tokens one after another: cached steps, sampling and beam search."""
