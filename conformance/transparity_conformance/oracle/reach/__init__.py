"""The reach of a verdict: thresholds, the calls that cross them, and the fields that calls exercise."""
