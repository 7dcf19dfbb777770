"""Planted bugs as rows of TOML files: their schema, the ports that contain them, the judge, and the measures."""
