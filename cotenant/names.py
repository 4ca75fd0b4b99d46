"""What users, jobs, nodes and tenants may be called: one rule for everything that is named in messages and files."""

from __future__ import annotations

import re
from typing import Final

NAME: Final = r"[A-Za-z0-9._-]{1,63}"
"""As a part of a larger expression."""
NAME_PATTERN: Final = re.compile(NAME)
