"""The figures that the documents promise, each measured by a module with a `main() -> dict`."""
