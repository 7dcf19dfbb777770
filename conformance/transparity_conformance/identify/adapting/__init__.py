"""Find the adapter of a model, whose parameters may have any names."""
