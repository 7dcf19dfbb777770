"""The transformer in PyTorch: `torch.nn` modules whose state dict has the NumPy column's parameter names.

Read the forward pass in this order: `transformer`, `masks`, `inputs.embedding`, `layers.sequential`, `norms.norm`,
`mixers.attention`, `feed_forward`, `heads.logits`. `transparity.config` explains the fields of `config`.
"""
