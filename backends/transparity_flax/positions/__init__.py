"""Positions other than rotary: tables added to embeddings, biases of scores, and a factor of queries."""
