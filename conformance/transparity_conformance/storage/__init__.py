"""Files: untrusted paths, matrices of checkpoints that stay in their files, and results of large models on disk."""
