"""Measures jobs that cotenant did not start, beside another engine or none. Nothing is changed or signalled."""
