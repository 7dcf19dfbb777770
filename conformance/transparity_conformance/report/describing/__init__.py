"""Configurations for people and machines."""
