"""Edits: small changes of the reference's computation, which may imitate the mistake of a port."""
