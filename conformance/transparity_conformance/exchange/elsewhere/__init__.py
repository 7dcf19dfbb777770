"""Ports that run elsewhere on a checkpoint: a bundle that names its tensors, and the answers that come back."""
