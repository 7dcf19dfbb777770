"""The result of an audit, as data and in lines."""
