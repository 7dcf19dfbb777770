"""Compare two implementations: find the lines of code that differ, and the edit that explains the wrong answers."""
