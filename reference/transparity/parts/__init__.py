"""What each part of a model is made of: its parameters, its taps, and along which axes it may be distributed."""
