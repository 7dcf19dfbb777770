"""The check of a port: its stages, its reach, the audit of its loader, and the systems it is checked on."""
