"""What stands beside a comparison of two implementations: a third one, and our catalogue of faults."""
