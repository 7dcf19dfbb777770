"""Positions other than rotary: tables added to embeddings, biases of scores, and a factor of queries."""

from transparity_pytorch.positions.learned import add_learned
from transparity_pytorch.positions.sinusoidal import add_sinusoidal

ADDED = {"learned": add_learned, "sinusoidal": add_sinusoidal}
"""The function that adds positions to the embeddings, for each `config.positions` that has one."""
