"""Between a policy and the engine: what it is asked, what its answer may be, and the check of its decisions."""
