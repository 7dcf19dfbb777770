"""Positions in the embeddings (tables), and in attention (windows, biases, rotary tables, a query temperature)."""

from transparity_flax.positions.learned import add_learned
from transparity_flax.positions.sinusoidal import add_sinusoidal

ADDED = {"learned": add_learned, "sinusoidal": add_sinusoidal}
"""Maps a value of `config.positions` to the function that adds these positions to the embeddings. Other values add
nothing."""
