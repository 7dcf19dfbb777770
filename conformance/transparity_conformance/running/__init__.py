"""Run a stranger's code: in process, supervised, by its loader or by its usual runtime."""
