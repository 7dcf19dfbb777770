"""Time and memory of the oracle of a large checkpoint: measured, fitted, and predicted."""
