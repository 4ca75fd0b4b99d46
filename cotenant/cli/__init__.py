"""The `cotenant` command: one module per group of verbs, tables and formats beside them."""

from cotenant.grpc_log import silence_grpc

silence_grpc()
