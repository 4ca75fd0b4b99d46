"""From an ONNX file to a typed feature vector; weights are never loaded."""
