"""A layer whose positions are mixed by a recurrence."""
