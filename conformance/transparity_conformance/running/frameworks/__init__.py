"""Modules of frameworks that are called in a way of their own: a file for each, behind one protocol."""
