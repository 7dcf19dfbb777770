"""Find lines of a port: where a wrong number is computed, and where two calls diverge."""
