"""Ports by other authors: loading, recording, and checks in this process, of a program, or from a bundle of files."""
