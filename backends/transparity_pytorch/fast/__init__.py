"""Faster computations of the same results: another layout of weights, compiled steps and CUDA graphs."""
