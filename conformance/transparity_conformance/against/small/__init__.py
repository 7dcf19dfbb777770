"""Small transformers models with random weights, and their inputs."""
