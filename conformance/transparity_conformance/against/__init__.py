"""Two implementations side by side: the lines on which they differ, and the edit of one that gives the other."""
