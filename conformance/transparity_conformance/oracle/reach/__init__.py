"""The reach of a verdict: the lengths, sizes and configuration fields at which a port was compared."""
