"""How many classes of transformers can be made small, built and run."""
