"""Requests and arrivals: generators and readers of public traces."""
