"""What is right, and within what budget: probes, the float64 oracle, budgets, derivatives and their calibration."""
