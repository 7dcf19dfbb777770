"""The outputs of a model: logits, hidden states, a pooled state or classes."""
