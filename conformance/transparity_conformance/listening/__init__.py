"""Records of a port's call: each operation's value, its inputs, and the line that ran it."""
