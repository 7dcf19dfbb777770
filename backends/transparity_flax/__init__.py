"""The transformer in JAX: `flax.nnx` modules, compiled by `jax.jit`.

Read the forward pass in this order: `transformer`, `masks`, `inputs.embedding`, `layers.sequential`, `norms.norm`,
`mixers.attention`, `feed_forward`, `heads.logits`. `transparity.config` explains the fields of `config`.
"""
