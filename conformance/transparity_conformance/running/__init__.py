"""Run a port: in this process or another, supervised, by its loader or by its usual runtime."""
