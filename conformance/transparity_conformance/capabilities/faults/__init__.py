"""The catalogue of faults in generation, cached decoding, losses and optimizers."""
