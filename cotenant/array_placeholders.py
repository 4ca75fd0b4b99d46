"""How a task of an array gets its index and its values: a name in braces stands for each."""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace known names at once, so that a value is never looked into; other braces stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
