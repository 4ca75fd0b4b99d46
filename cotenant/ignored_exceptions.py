"""What Python prints of exceptions that ended nothing, as of objects that it clears away behind a real one."""

from __future__ import annotations

import re

_IGNORED = re.compile(
    r"(?m)^Exception ignored [^\n]{0,1000}\n(?:Traceback \(most recent call last\):\r?\n(?:[ \t][^\n]{0,1000}\n)+)?"
    r"[A-Za-z_][\w.]{0,100}(?::[^\n]{0,4000})?(?:\n|\Z)"
)


def without_ignored(log: str) -> str:
    """Returns a log without them.

    Args:
        log: The end of what a program printed.
    """
    return _IGNORED.sub("", log)
