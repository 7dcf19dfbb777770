"""The calls of a model that is fitted: their inputs, and the longest of them."""
