"""Measures of the check of one implementation against another."""
