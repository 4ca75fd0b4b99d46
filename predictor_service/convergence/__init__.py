"""How long a job still trains, and how fast on how many machines: pure functions of what it reported."""
