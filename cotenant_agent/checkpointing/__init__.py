"""Checkpoints: accepted under a fence, joined from parts, carried between nodes, found on shared storage."""
