"""What a check of `cotenant doctor` found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Outcome of one check.

    Attributes:
        state: ok, warning (works, but less) or fault.
        remedy: What to do; empty when ok, or where what was found says it.
    """

    check: str
    state: str
    found: str
    remedy: str = ""
