"""How long things take: encode, step, link, serialise and broadcast."""
