"""The event schema, its recorder, reader and writer."""
