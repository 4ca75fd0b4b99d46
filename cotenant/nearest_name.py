"""Remedies for misspelt names."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


def did_you_mean(name: str, valid: Sequence[str]) -> str:
    """Returns a remedy: the most similar valid name, else all of them."""
    near = difflib.get_close_matches(name, valid, n=1)
    return f"did you mean {near[0]!r}?" if near else "one of: " + ", ".join(valid)
