"""Wrong ports that try to pass the check. We wrote them without the catalogue of faults.

Each row of bugs/ is an edit of the independent port, and its story states the mistake. The rows of programs.toml are
checked from the command line.
"""
