"""Edits of a program, with no table of a family: each is tried where two programs part."""
