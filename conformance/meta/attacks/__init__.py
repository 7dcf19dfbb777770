"""Ports that are wrong, written without the catalogue by somebody who wants to be let through.

Each is a function in place of one method of the right port, or a class of several; its docstring is the story. Only the
runner imports the checker.
"""
