"""Limits on memory, checks of files, and arrays that are not in memory."""
