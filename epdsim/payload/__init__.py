"""Real tensors: materialised items, shared-memory broadcast, tensor-parallel worker processes."""
