"""Loaders written independently of the checker, right ones and ones with planted faults, and how they are audited."""
