"""The node agent: runs jobs on one GPU machine and measures what really happens."""
