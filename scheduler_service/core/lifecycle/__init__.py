"""The life of an attempt: prepared, started, moved, ended."""
