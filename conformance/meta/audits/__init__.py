"""Loaders written independently of the checker, with and without planted faults, and their audits."""
