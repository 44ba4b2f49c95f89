"""vLLM's request and response models and its tensor codec, byte for byte."""
