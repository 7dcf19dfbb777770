"""The embedding of a stack's input: tokens, patches of images or frames of audio."""
