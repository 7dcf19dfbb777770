"""Record every operation of a port's call: its value, its inputs and the port's line that ran it."""
