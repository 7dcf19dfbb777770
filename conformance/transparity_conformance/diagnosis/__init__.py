"""The diagnosis of a wrong port: which computations are wrong, and why."""
