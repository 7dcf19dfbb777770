"""Measure `check(…, against=…)`, which compares one implementation with another."""
