"""The `cotenant` command: one module per group of verbs, tables and formats beside them."""
