"""A port of the reference in PyTorch by somebody who had read its documents and none of its code.

Nothing here imports the contract, a column or the checker: a configuration is any object with the documented fields.
"""
