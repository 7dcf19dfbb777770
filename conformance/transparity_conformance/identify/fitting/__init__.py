"""Find the configuration with which the reference computes the same outputs as a module (`transparity fit`)."""
