"""Experts in place of one feed-forward: found by their router, and read off the sum of their outputs."""
