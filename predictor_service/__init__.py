"""The predictor: ONNX graph to features to calibrated predictions."""

import os

# ONNX Runtime reads it where it is first imported: its builds keep an identifier of the machine in the home folder and
# send which programs load which models to their maker, with the names of graphs. A value that is set stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
