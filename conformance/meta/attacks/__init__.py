"""Wrong ports, written without the catalogue in order to pass the check.

Each is a function that replaces one method of the right port, or a class that replaces several; its docstring is the
story. Only the runner imports the checker.
"""
