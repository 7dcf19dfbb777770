"""Expected results and their tolerances, from the reference in float64; and the inputs on which ports are compared."""
