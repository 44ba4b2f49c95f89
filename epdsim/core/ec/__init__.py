"""Embeddings between engines: the gate of a request's parameters, and connectors that share, pull or push."""
