"""Fit recurrences that replace attention: find their convolutions over time, and identify their features by value."""
