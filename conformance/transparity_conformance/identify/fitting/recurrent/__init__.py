"""Recurrences in place of attention: found by their convolutions over time, and read off their values."""
