"""Learns from all columns that a public table publishes: what `evaluate` answers rows by that a service refuses.

It stands behind the interface of the served fit (`learning_task.Method`), and apart from it because that one knows a
job by its graph and a device type by its own rows: `benchmarks.rows_not_served` prints by how much it errs more on rows
that it refuses. Nothing that serves may import this room, and no row that a service could answer comes here.
"""
