"""Measures jobs alone and co-located; owns the zoo of architectures."""
