"""The reach of a verdict on a port: calls at other sizes, and the coverage that is reported."""
