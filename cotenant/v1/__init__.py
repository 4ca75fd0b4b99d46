"""Generated from protos/cotenant/v1 by `make protos`; never edited."""
