"""What a model can do besides its forward pass: loss, gradients, generation, cached decoding and training."""
