"""From the bytes of an ONNX file to what a graph computes, moves and keeps at every batch; weights are never loaded."""
