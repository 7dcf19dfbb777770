"""Limits on memory and on the files that may be read."""
