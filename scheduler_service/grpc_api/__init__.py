"""Translates between the wire and the engine; nothing is decided here."""
