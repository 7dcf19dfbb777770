"""Run a port in this process or in another process, from its own loader, or with the runtime of an exported file."""
