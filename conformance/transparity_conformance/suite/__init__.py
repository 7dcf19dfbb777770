"""Claims about installed backends, and the pytest plugin that tests them and collects evidence."""
