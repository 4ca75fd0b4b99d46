"""The predictor: ONNX graph to features to calibrated predictions."""
