"""Answers in another form than logits: recognised by their numbers, named, and read as logits if they can be."""
