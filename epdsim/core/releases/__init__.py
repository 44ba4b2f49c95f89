"""vLLM's releases as dialects of the rules."""
