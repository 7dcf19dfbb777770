"""The stages of a check, and the evidence to which they add their results."""
