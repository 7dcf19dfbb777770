"""Every operation of a port's call, with its value, its inputs and the port's line that ran it."""
