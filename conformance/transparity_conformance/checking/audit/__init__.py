"""The audit of a loader: whether the loader follows every field of config.json, and reads every tensor of the file."""
