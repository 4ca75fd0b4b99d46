"""What can be run with python -m predictor_service."""
