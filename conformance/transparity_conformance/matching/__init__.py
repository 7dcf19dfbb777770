"""Find the values of one program in another program, which may order axes differently."""
