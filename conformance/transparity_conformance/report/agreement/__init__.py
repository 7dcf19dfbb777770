"""The agreement matrix, which shows how well each backend fulfills each claim, as terminal text, HTML and JSON."""
