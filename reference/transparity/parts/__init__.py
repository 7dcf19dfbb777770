"""Parts of a model: their parameters, their activations, and how their parameters are distributed over ranks."""
