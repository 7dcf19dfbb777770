"""The diagnosis of a port: which computations are wrong, and why."""
