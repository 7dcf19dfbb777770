"""Change the recorded operations of a port, so that their values can be compared with the reference."""
