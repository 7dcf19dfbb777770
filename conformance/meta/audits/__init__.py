"""Audits of loaders with and without planted faults; the loaders do not import the checker."""
