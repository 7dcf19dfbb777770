"""The extent of a difference: the calls, positions, tokens and predictions that change."""
