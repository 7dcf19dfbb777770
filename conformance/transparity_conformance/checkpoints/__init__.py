"""Checkpoints of published models: convert a Hugging Face folder to a configuration and parameters, and back.

`files` reads JSON and bytes safely. `reading` reads config.json and the tensors of a folder. `tables` describes fields
of config.json, and `naming` describes names of tensors. `families` has the fields and names of every family.
`importing` converts a folder to a configuration and parameters; `exporting` does the reverse. `examples` builds a small
model of each family.
"""
