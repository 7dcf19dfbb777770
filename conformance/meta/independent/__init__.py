"""A PyTorch port, written from the reference's documentation and not from the reference's code.

model.py, port.py and positions.py do not import the contract, a column or the checker. A configuration is any object
with the documented fields. Each row of bugs/ is an edit of one of these files.
"""
