"""The transformer in JAX: `flax.nnx` modules, compiled by `jax.jit`."""
