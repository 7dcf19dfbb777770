"""The transformer in PyTorch: `torch.nn` modules whose state dict has the NumPy column's parameter names."""
