"""Put on PYTHONPATH during a capture; nothing else may lie here, or it would hide modules of the script."""
