"""What a property is, and the monitors that judge events."""
