"""A backend on several ranks, in separate processes, with the interface of a backend in this process."""
