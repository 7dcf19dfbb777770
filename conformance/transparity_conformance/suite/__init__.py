"""Claims about installed backends, the pytest plugin that tests them, and the evidence for the agreement matrix."""
