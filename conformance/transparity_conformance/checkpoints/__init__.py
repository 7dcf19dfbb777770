"""Checkpoints of published models: convert a Hugging Face folder to a configuration and parameters, and back."""
