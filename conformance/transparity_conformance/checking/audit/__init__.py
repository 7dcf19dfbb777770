"""The audit of a port: whether it follows every field of its configuration and reads every tensor of its file."""
