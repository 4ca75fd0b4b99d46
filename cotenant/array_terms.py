"""What the command line and the scheduler both hold arrays to, and how a task gets its index and its values."""

from __future__ import annotations

import re
from collections.abc import Mapping

TASKS_MAX = 1_000
INDEX_MAX = 1_000_000
VALUE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace known names in braces at once, so that a value is never looked into; other braces stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
