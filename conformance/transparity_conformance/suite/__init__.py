"""Claims about installed backends, the pytest plugin that makes them, and the evidence for the agreement matrix."""
