"""Tables of the fields of config.json. A row reads and writes a field; the audit uses the same rows."""
