"""Families of models, one file each: the fields of its config.json and one table of tensor names."""
