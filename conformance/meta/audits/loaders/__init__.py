"""Correct loaders of eleven families, written like published code; none imports the checker."""
