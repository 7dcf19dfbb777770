"""Artifacts with their own weights, each run by its usual runtime in the process of the port."""
