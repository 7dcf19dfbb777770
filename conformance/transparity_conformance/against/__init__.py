"""Ports checked against classes of transformers, made small."""
