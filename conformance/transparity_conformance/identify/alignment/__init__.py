"""Find the reference's taps (named activations) among all values that a port computes, by comparing values."""
