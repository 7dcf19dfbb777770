"""A backend over several ranks, in processes of their own, called as one in this process is."""
