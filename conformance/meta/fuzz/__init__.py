"""Unusual inputs, drawn by Hypothesis, and the outcome of each: a verdict or one sentence."""
