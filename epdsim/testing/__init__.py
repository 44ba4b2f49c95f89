"""Hypothesis strategies and the pytest plugin."""
