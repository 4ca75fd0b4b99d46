"""The predictor as the scheduler asks it."""
