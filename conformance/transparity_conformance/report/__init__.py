"""Answers for people and machines: comparisons, verdicts, findings, and their terminal, HTML and JSON forms."""
