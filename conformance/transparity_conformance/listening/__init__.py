"""Records of a port's call: the value of every operation, its inputs, and the line of the port that ran it."""
