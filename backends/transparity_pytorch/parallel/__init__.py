"""The PyTorch model over several ranks: DTensor for tensor parallelism, FSDP2 for data parallelism."""
