"""How long the oracle of a large checkpoint takes and how much memory: measured, fitted, and foretold."""
