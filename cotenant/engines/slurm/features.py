"""The features of nodes that a job asks for by --constraint: names with & or with | between them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_CHARACTERS_MAX: Final = 1_000
_NAME: Final = r"[A-Za-z0-9_.:=/-]+"
_ALL = re.compile(rf"{_NAME}(?:&{_NAME})*")
# In brackets: all nodes of a job have the same one of them. We place jobs of one node.
_ANY = re.compile(rf"\[{_NAME}(?:\|{_NAME})*\]|{_NAME}(?:\|{_NAME})*")


def fits_features(constraint: str, features: Collection[str]) -> bool:
    """Say whether a node with these features is one of those that a constraint names.

    Raises:
        ValueError: It is none of the forms that are understood here.
    """
    if not constraint:
        return True
    if len(constraint) <= _CHARACTERS_MAX and _ALL.fullmatch(constraint):
        return all(name in features for name in constraint.split("&"))
    if len(constraint) <= _CHARACTERS_MAX and _ANY.fullmatch(constraint):
        return any(name in features for name in constraint.strip("[]").split("|"))
    raise ValueError(f"--constraint {constraint[:100]!r} is neither names joined by & nor names joined by |")
