"""Measures of recording: its cost, and the alignment of its values."""
