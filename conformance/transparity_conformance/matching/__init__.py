"""What the values of two programs have in common: in any order of axes, and along the flow of data."""
