"""What an engine remembers of media: encoder outputs, inputs by content hash, and the shared-memory ring."""
