"""The parts of a model. Each lists its parameters, its activations, and how its parameters may be distributed over
ranks."""
