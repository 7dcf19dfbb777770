"""Tables of config.json fields; each row serves to read, write and audit a field."""
