"""The check of a port: its stages, the sizes of its calls, the audit of its loader, and the configurations."""
