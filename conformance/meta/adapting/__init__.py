"""Measure `adapt` on small ports that resemble published ones; each has its own tensor names and layouts."""
