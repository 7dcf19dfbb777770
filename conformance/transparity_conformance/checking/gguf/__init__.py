"""Checks of GGUF files, llama.cpp's format; errors of the conversion are separated from the effect of quantization."""
