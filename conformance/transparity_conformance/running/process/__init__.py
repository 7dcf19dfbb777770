"""A port in its own process: start it, send requests over a pipe, and stop it in time."""
