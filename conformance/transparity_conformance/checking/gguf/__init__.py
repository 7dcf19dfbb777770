"""Check files in GGUF, the format of llama.cpp. The check separates conversion errors from the effect of
quantization."""
