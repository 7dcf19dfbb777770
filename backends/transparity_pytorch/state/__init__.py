"""The cache of decoding, the inputs that all layers of a stack share, and the loading of parameters."""
