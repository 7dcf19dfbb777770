"""What fits in memory, and what may be read from a file."""
