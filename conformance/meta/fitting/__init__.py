"""Measure `transparity fit` on modules with random configurations."""
