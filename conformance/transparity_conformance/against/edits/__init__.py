"""Edits of a program without tables of families: each is tried where two programs diverge."""
