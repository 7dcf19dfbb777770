"""Families of encoder-decoders: of text to text, and of audio to text."""
