"""The reach of a verdict: thresholds, calls that cross them, and the configuration fields that calls exercise."""
