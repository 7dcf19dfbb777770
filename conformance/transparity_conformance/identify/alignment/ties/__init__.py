"""Faults that the operations of a port do not tell apart."""
