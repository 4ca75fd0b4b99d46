"""OJPP and its baselines: workers on as few GPUs as limits on compute, memory peaks and slowdown allow.

`ojpp_packing` finds where a job may go, `packing_rules` holds a policy's limits, `packing_orders` the orders of
the queue, `packing_search` takes the best of several plans, and `adjustment` moves running workers.
"""
