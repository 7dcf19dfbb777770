"""The reach of a difference: to which positions, tokens and predictions."""
