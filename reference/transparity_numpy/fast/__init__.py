"""Faster computations of the same results: one matrix product per linear map, and batches split over threads."""
