"""A port of the reference in PyTorch by somebody who had read its documents and none of its code.

Nothing in model.py, port.py and positions.py imports the contract, a column or the checker: a configuration is any
object with the documented fields. The rows of bugs/ are changes of the text of these files.
"""
