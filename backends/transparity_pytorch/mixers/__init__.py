"""The mixers of positions in a layer: attention and its variants, one per file. A table chooses the mixer."""
