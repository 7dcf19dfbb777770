"""Drafts of models of transformers by hand, each with several mistakes."""
