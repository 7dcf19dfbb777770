"""Measure `check PORT --against REFERENCE` on ports with one generic mistake each."""
