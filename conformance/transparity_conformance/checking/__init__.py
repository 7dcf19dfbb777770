"""The check of a port: its stages, the calls of other sizes, the audit of its loader, and the configurations."""
