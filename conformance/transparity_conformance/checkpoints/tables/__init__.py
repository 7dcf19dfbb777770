"""Tables of the fields of config.json. Each row reads and writes a field, and is used to audit it."""
