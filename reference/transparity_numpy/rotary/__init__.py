"""Rotary positions: the rotation, and the scalings of its angles, one per file."""
