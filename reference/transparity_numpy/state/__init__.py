"""The cache of decoding, and the inputs that all layers of a stack share."""
