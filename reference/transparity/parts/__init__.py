"""The parts of a model: each lists its parameters, its taps, and the axes along which it may be distributed."""
