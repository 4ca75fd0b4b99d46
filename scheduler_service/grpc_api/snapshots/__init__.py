"""Decide: snapshots of other clusters, read row by row and kept for the next question."""
