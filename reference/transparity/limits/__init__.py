"""Limits on memory, checks of files, and arrays that stay in files."""
