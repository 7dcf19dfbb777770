"""Show the result of a check as sentences, text for terminals, Markdown or an HTML page."""
