"""How embeddings get from encoders to engines."""
