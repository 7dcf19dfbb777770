"""Sharded ports, right and wrong, written by hand, and what the checker finds of them."""
