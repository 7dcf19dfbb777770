"""The transformer of `transparity` in PyTorch: `torch.nn` modules whose state dict has the specification's names."""
