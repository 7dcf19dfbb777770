"""Encoders built like BERT but for one part each."""
