"""Load and run ports: Python functions in this or another process, Hugging Face folders, and exported model files."""
