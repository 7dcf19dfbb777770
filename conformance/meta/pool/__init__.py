"""Planted bugs as rows of TOML files: the schema of a row, ports with bugs, judgments of reports, and measures."""
