"""How far a job is, by what it reports or prints."""
