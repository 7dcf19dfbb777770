"""Modules of Equinox and Keras as people write them, right and wrong, and how they are judged."""
