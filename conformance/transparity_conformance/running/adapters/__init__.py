"""Read and write adapters (files that map the reference's parameters to a model's tensors), and access the tensors."""
