"""A backend over several ranks, in separate processes, called like one in this process."""
