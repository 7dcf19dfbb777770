"""A model with names of its own: its tensors matched with our parameters, and the file that says how."""
