"""Correct and wrong modules in the style of Equinox and Keras, and how the checker judges them."""
