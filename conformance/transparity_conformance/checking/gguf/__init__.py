"""Check files in llama.cpp's format GGUF, and separate conversion errors from the effect of quantization."""
