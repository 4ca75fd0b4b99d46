"""What can be run with python -m predictor_service."""

from cotenant.grpc_log import silence_grpc

silence_grpc()
