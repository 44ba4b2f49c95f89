"""Scenario files: schema, loader, runner."""
