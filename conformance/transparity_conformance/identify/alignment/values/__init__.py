"""Everything that a port computed, indexed by its numbers."""
