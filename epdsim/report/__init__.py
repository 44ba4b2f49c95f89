"""Tables and files made from results."""
