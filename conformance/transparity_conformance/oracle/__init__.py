"""The right answer and its budget: probes, the float64 oracle, budgets, derivatives and their calibration."""
