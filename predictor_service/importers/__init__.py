"""Public measured sets, read as they are published and written in our schema. One module per set."""
