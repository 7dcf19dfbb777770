"""Inputs for the calls of a fitted model, and the longest input that it takes."""
