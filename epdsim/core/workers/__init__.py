"""What a model runner keeps between steps, and what it would do wrong with what it was sent."""
