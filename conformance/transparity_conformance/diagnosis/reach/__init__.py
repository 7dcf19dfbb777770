"""The extent of a difference: which calls, positions and predictions it changes."""
