"""The transformer of `transparity` in JAX: `flax.nnx` modules under `jax.jit`."""
