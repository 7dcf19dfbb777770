"""The stages of a check, and their shared evidence."""
