"""Compare two implementations: find the lines that differ, and the edit that explains the difference."""
