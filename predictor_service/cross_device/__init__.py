"""Predictions on device types of which nothing was measured: one model for all of them, its device a feature."""
