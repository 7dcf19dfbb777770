"""The check of a port: its stages, other sizes, the audit of its loader, and the configurations."""
