"""Rotary positions: the rotation, a file for each scaling of its angles, and the table that chooses."""
