"""What a model returns: logits, hidden states, a pooled state or classes; the table chooses."""
