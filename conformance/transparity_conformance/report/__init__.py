"""Report comparisons and checks as text for terminals, HTML pages, Markdown and JSON."""
