"""Positions: tables added to embeddings; and windows, biases, rotary tables and a temperature in attention."""

from transparity_pytorch.positions.learned import add_learned
from transparity_pytorch.positions.sinusoidal import add_sinusoidal

ADDED = {"learned": add_learned, "sinusoidal": add_sinusoidal}
"""The function that adds positions to the embeddings, for each `config.positions` that has one."""
