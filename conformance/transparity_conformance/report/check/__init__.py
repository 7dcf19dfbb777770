"""A check as sentences, a table for terminals, and an HTML page."""
