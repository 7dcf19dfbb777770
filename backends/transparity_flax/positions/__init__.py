"""Positions other than rotary positions: tables that are added to embeddings, biases of scores, and a factor of
queries."""
