"""Hand-written versions of transformers models, each with several mistakes."""
