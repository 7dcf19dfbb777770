"""The cache of keys and values, its context, and the parameters."""
