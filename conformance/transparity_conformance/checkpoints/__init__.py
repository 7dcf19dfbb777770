"""Checkpoints of published families: Hugging Face folder → configuration and parameters, and back.

`files` reads JSON and bytes safely, and `reading` finds a folder's config and tensors. `rows` has the kinds of fields,
`naming` maps tensor names, and `codecs` combines both into a family. `families` has all families, and `importing`
imports a folder. `exporting` writes a folder by the same tables, and `examples` has a small model of each family.
"""
