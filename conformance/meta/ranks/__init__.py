"""Hand-written sharded ports, correct and wrong, and the checker's findings about these ports."""
