"""Faster computations of the same results: another layout of weights, and batches split over devices."""
