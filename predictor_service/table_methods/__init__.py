"""Learns from all columns that a public table publishes: what `evaluate` answers rows by that a service refuses."""
