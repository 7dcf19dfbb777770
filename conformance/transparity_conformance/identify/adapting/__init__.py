"""Finding the adapter of a model with names of its own: it is run once, listened to, and matched place by place."""
