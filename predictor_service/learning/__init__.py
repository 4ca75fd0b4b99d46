"""What is to be learned: measured profiles as learning tasks, their metrics, and the model of all device types."""
