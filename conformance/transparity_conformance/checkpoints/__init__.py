"""Checkpoints of published families: hub folder → configuration and parameters, and back.

`files` reads JSON and bytes safely, `reading` finds a folder's config and tensors, `fields` interprets config.json,
`naming` maps tensor names, `families` has one file per family, and `importing` puts them together. `exporting` writes a
folder by the same tables, and `examples` has a small model of each family.
"""
