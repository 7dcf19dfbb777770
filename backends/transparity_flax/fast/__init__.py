"""Faster computations of the same results, with another layout of the weights, and with batches split over devices."""
