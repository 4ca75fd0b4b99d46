"""The scheduler's end of the streams to node agents."""
