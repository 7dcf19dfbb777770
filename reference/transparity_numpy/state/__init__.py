"""The cache of keys and values, and its context."""
