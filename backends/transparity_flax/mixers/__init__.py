"""The mixers of positions in a layer: attention, and a file for each variant. A table chooses the mixer."""
