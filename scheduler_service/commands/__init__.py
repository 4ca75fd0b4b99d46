"""The verbs of `python -m scheduler_service`."""

from cotenant.grpc_log import silence_grpc

silence_grpc()
