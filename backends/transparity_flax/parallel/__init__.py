"""The JAX model over several devices: a mesh with a data axis and a tensor axis, and named shardings."""
