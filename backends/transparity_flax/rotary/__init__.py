"""Rotary positions: the rotation, one file per scaling of its angles, and the table that selects one."""
