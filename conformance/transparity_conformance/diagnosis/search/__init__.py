"""The search for causes: single faults, faults with a fitted number, and combinations of faults."""
