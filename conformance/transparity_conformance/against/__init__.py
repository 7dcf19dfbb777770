"""Compare two implementations: find the lines on which they differ, and the edit that turns one into the other."""
