"""The stages of a check, and the evidence that they share."""
