"""Check a port: the stages of a check, calls at many sizes, the audit of a loader, and the checked configurations."""
