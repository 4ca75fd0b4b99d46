"""All attempts of this node: planned, launched, started early, paused, stopped, and why they ended."""
