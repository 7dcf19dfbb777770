"""Positions other than rotary ones: tables that are added to embeddings, biases of scores, and a factor of queries."""
