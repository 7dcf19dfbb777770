"""GGUF files, llama.cpp's format: what a conversion did, told from what quantisation did."""
