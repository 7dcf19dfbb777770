"""Find the configuration of a module."""
