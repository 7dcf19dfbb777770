"""Run a port: in process, supervised, by its loader or by its usual runtime."""
