"""The expected results and their tolerances: probes, the reference in float64, derivatives, and calibration."""
