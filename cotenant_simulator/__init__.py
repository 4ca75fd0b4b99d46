"""Trace in, tables and pictures out: the scheduler's own engine and policies in simulated time."""
