"""Checks of GGUF files, the format of llama.cpp. They separate conversion errors from the effect of quantization."""
