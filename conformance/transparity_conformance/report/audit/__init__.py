"""The result of an audit, as data and as text."""
