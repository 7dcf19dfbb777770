"""Reports of comparisons and checks, for people and for programs: text for terminals, HTML pages and JSON."""
