"""Faster computations of the same results: other layouts of linear maps, and batches split over cores or devices."""
