"""Checkpoints of the families that people port, as a configuration and parameters of ours.

One file for each family: its fields, and one table of names. `reading` reads files, `fields` what a config.json says,
`naming` what tensors are called; `importing` puts them together.
"""
