"""Compare two implementations: find the lines on which they differ, and the edit of the reference that gives the port's
numbers.
"""
