"""Claims about backends, the tests that check each claim for each installed backend, and their pytest plugin."""
