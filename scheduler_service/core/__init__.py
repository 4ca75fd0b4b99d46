"""The pure engine: records, events, commands, decisions. No clock, no file, no network."""
