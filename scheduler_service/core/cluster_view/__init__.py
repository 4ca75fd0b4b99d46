"""What a policy sees: one frozen instant of the cluster, an index over it, and arrays of all GPUs at once."""
