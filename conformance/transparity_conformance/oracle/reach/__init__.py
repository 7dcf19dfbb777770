"""The reach of a verdict: the lengths, sizes and configuration fields that the compared calls cover."""
