"""Which variable a program died of for want of it: jobs have no variables of their owner's shell, but for `--env`."""

from __future__ import annotations

import re

# As os.environ raises it, in newer Pythons and in older ones; an equal exception of another dictionary has other lines.
_RAISED = re.compile(
    r"(?m)^ {2}File \"(?:<frozen os>|[^\"\r\n]{1,300}/os\.py)\", line [0-9]{1,9}, in __getitem__\r?\n"
    r"(?: {4}raise KeyError\(key\) from None\r?\n)?KeyError: '([A-Za-z_][A-Za-z0-9_]{0,100})'\s*\Z"
)


def missing_variable(log: str) -> str:
    """Returns the variable that a Python program asked for in vain as its last deed; empty = none.

    Args:
        log: The end of what it printed.
    """
    found = _RAISED.search(log)
    return found[1] if found else ""
