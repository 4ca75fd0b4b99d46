"""GPUs and the CPU cores that stand in for them: inventory, calibration, memory, measurement windows."""
