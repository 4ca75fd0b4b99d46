"""The node agent: runs jobs on one GPU machine and measures what really happens."""

from cotenant.grpc_log import silence_grpc

silence_grpc()
