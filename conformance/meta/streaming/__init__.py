"""Measure and predict the time and memory that the oracle needs for large checkpoints."""
