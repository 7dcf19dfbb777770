"""Checkpoints of published families: hub folder → configuration and parameters, and back.

`files` reads JSON and bytes safely, `reading` finds a folder's config and tensors, `rows` has the kinds of fields,
`naming` maps tensor names, `codecs` makes a family of both, `families` has all of them, and `importing` puts them
together. `exporting` writes a folder by the same tables, and `examples` has a small model of each family.
"""
