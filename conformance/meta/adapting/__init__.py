"""Measures of `adapt`: small ports like published ones, each with its own names and layouts."""
