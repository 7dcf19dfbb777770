"""Loaders for other people's code: each subject has `load(folder)` or `build(config, parameters)`."""
