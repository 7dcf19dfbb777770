"""Models of transformers made small, with drawn weights, and their inputs."""
