"""The agreement matrix: the evidence of a session as a table for terminals, an HTML page and JSON."""
