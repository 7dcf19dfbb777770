"""Faster paths to the same numbers: packed weights, and one batch over several cores or devices."""
