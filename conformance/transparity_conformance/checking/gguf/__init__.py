"""GGUF files, llama.cpp's format: errors of the conversion, separated from the effect of quantization."""
