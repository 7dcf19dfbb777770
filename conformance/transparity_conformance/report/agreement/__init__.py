"""The agreement matrix: how well the backends agree with every claim, as a table for terminals, HTML and JSON."""
