"""The gRPC face of the predictor."""
