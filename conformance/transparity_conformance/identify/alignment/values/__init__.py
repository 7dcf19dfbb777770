"""Changes to the recorded operations of a port that let their values be compared with the reference."""
