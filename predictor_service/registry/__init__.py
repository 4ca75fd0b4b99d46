"""Immutable model versions on disk, and the one that is served."""
