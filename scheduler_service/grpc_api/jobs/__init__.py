"""Requests about jobs: submitting, listing, watching, explaining, forecasts."""
