"""Ports on several ranks: launched, asked together, joined by their placements, and compared with one rank."""
