"""A port of the reference in PyTorch, written from its documents without its code.

The files model.py, port.py and positions.py import neither the contract, a column nor the checker: a configuration is
any object with the documented fields. The rows of bugs/ are changes of the text of these files.
"""
