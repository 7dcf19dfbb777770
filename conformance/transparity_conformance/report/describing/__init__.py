"""Configurations as text and as JSON."""
