"""The engine's scheduler: which tokens, blocks and media of which requests make up the next step."""
