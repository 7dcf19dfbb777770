"""Record a port's forward pass: the value, the inputs and the line of code of each operation."""
