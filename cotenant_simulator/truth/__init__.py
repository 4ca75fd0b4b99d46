"""Ground truth of jobs and machines, and its predictions: two separate inputs."""
