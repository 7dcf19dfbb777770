"""Arrays that stay in files: matrices of checkpoints, and results of large models."""
