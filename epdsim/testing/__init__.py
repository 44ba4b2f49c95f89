"""What property tests are made of: strategies, explorations, state machines, and the pytest plugin `epdsim.testing.plugin`.

Modules are imported by name; nothing is loaded here, since pytest loads this package in every run of the environment.
"""
