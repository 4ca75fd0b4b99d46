"""Agents that are connected: what they report becomes events, what is ordered becomes messages."""
