"""Files of the agent: where they lie, written whole or not at all, on a disk that may be full."""
