"""Rows of config.json: each is read, written and audited by one definition."""
