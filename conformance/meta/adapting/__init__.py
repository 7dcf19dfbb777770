"""Measure `adapt` on small ports that resemble published ones, each with its own tensor names and layouts."""
