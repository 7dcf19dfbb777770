"""Tables of config.json fields; each row reads, writes and audits a field."""
