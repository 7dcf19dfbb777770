"""Right loaders of eleven families, in the manner of code that people publish; none imports the checker."""
