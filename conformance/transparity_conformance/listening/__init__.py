"""Record a port's forward pass: the value and the inputs of each operation, and the line of code that ran the
operation."""
