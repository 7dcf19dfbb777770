"""How far a difference reaches: to which positions, tokens and predictions."""
