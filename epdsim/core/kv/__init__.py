"""KV cache blocks: keys, pool, and what is handed over between engines."""
