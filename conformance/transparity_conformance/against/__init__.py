"""Two implementations side by side: where they part, on which lines, and which edit of one gives the other's numbers."""
