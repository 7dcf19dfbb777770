"""The inputs on which ports are compared, and the expected results with tolerances, from the reference in float64."""
