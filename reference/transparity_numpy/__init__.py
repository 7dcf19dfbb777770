"""The transformer in NumPy, in plain functions: the specification of the other two columns.

Read the forward pass in this order: `transformer`, `masks`, `inputs.embedding`, `layers.sequential`, `norms.norm`,
`mixers.attention`, `feed_forward`, `heads.logits`. `transparity.config` explains the fields of `config`.

`transparity_pytorch` and `transparity_flax` have the same files, names and order. `arithmetic.functional` has the
primitives that the frameworks provide. `port` is the entry point.
"""
