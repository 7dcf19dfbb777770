"""Reports for people and machines: comparisons, verdicts and findings, in terminals, as HTML and as JSON."""
