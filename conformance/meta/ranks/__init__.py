"""Correct and wrong sharded ports, written by hand, and what the checker finds in them."""
