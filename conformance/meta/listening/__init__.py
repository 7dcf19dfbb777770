"""Measure the recording of operations: its cost, and the alignment of the recorded values."""
