"""Find the reference's taps, by value, among everything that a port computes."""
