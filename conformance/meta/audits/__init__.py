"""Loaders written independently of the checker, right and with planted faults, and their audits."""
