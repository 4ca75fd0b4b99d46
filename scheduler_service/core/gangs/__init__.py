"""Jobs of several processes: parts that start and pause together, and ranks that are too slow."""
