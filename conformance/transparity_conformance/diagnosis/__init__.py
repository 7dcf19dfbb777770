"""The diagnosis of a wrong port: which of its computations are wrong, and why."""
