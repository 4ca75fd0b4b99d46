"""Runs a user's own training script until its second optimizer step, and reads graph and settings off it."""
