"""Ray as an engine: what waits, runs and is decided stands in Ray's key-value store and its table of named actors."""
