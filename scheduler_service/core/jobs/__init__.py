"""What the engine remembers of a job, as plain records."""
