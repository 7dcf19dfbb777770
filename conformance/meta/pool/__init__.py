"""Planted bugs as rows of TOML files: their schema, ports that have them, the judge of answers, and the measures."""
