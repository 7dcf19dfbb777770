"""Rows of config.json: one definition each for reading, writing and auditing."""
