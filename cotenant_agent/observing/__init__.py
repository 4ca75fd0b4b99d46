"""Measures jobs that cotenant did not start, under another engine or none. Nothing is changed or signalled."""
