"""The property pack: what must hold of every system under test, run by pytest from the repository or from an installed epdsim."""
