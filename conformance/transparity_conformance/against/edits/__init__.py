"""Edits: small changes of the reference's computation, after which it may give a wrong port's numbers."""
