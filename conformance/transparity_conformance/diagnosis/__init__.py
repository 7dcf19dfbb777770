"""Find where a port diverges and why: the walk, the catalogue of faults, the search, fitting, equivalence."""
