"""Seeded inputs that nobody would write, and what becomes of each: a verdict or one sentence."""
