"""Other people's code as a user loads it: `load(folder)` for a hub's folder, or `build(config, parameters)`."""
