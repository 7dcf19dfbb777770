"""Edits of a program at the step where two programs diverge. They need no knowledge of model families."""
