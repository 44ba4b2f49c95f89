"""SimPy processes: each calls the core, adds time and emits events."""
