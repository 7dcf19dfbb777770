"""Record a port's forward pass: each operation's value, its inputs, and the line of code that ran the operation."""
