"""The result of a check, as sentences, as text for terminals, as Markdown, and as an HTML page."""
