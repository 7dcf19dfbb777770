"""Ways to run a port: in this process or in another, from its own loader, or with the runtime of an exported file."""
