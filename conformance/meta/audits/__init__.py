"""Audits of loaders that do not import the checker, with and without planted faults."""
