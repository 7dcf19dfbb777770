"""Wrong ports that try to pass the check; their authors did not use the catalogue of faults.

Each attack is a function that replaces one method of the correct port, or a class that replaces several. Its docstring
states the mistake. Only the runner imports the checker.
"""
