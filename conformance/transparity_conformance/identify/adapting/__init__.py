"""Find the adapter of a model with its own parameter names: run it once, record it, and match it place by place."""
