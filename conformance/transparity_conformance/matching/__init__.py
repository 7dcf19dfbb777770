"""Find the values of one program among the values of another program, which may order axes differently."""
