"""The lines of a port: in which a wrong number is made, and at which two calls part."""
