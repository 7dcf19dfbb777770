"""Descriptions of configurations and causes, as text and as JSON."""
