"""What people touch: the command line, the Python client and the helper for training scripts."""

__version__ = "0.1.0"
