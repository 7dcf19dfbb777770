"""Right loaders of eleven families, like published code; none imports the checker."""
