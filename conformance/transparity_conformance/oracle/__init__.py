"""The inputs of a comparison, the expected results from the reference in float64, and the tolerances."""
