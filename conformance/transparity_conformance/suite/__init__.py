"""Claims about backends, the tests of each claim for each installed backend, and a pytest plugin."""
