"""Exact optima of small instances, against which the heuristics of the policies are measured (extra `exact`)."""
