"""The policy that a new cluster starts with, for every program: the best on public job lists that never preempts."""

from __future__ import annotations

DEFAULT_POLICY = "sjf_bsbf"
"""Chosen by `python -m benchmarks.default_policy`; docs/research/policy-comparisons.md has the table."""
