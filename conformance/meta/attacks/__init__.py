"""Ports that are wrong, written without the catalogue by somebody who wants to be let through.

Each is a class with the one line that an engineer got wrong; its docstring is the story. Only the runner imports the
checker.
"""
