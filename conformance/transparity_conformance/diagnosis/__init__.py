"""Where a port diverges and why: the walk, the catalogue of faults, the search for a cause, fitting, equivalence."""
