"""The diagnosis of a port: the computations that are wrong, and the search for causes."""
