"""Inputs that nobody would write, drawn by Hypothesis, and what becomes of each: a verdict or one sentence."""
