"""The inputs of a stack: tokens, patches of images or frames of audio. A table chooses the embedding."""
