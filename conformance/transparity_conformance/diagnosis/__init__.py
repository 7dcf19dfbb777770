"""The diagnosis of a port: the walk, segments that are wrong, and the search for causes."""
