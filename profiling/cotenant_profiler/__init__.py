"""Measures jobs alone and side by side; owns the zoo of architectures."""
