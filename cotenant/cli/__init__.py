"""The `cotenant` command: one module per group of verbs, plus tables and formats."""

from cotenant.grpc_log import silence_grpc

silence_grpc()
