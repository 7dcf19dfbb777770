"""Alignment: the reference's taps found among everything that a port computes, by value."""
