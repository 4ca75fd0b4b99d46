"""From measured profiles to a model version."""
