"""The mixers of positions in a layer, one per file: attention, latent attention and recurrences."""
