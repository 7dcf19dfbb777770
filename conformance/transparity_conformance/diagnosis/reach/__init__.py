"""The reach of a difference: the positions, tokens and predictions that it changes."""
