"""What a layer is given beside its input: the cache of keys and values, its context, and the parameters."""
