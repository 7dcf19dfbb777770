"""The extent of a difference: which calls, positions, tokens and predictions change."""
