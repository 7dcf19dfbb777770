"""Edits of a program at the step where two programs diverge. The edits work for any model."""
