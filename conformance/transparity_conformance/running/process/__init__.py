"""A port in a process of its own: started, asked over a pipe, and ended in time."""
