"""The loss that a training script prints beside its step, for jobs that name no expression and say nothing.

`loss 1.2`, `loss: 1.2`, `loss=1.2`, `train_loss 1.2`, `'loss': 1.2`, on the line of the step; the loss of a validation
or test is another one. A comma may stand for the point where it cannot part thousands: `0,532`, but not `1,234`.
"""

from __future__ import annotations

import math
import re

_REACH = 200
"""Characters before and after a step in which its loss is looked for."""
_LOSS = re.compile(
    r"(?i)(?<![a-z0-9_])(?<!val )(?<!eval )(?<!test )(?<!validation )(?:train(?:ing)?[_ /])?loss"
    r"[\"']? {0,2}[:=]? {0,2}\(?([0-9]{1,9}\.[0-9]{1,17}(?:e[+-]?[0-9]{1,3})?(?!\.?[0-9])"
    r"|(?:0,[0-9]{1,17}|[0-9]{1,9},(?:[0-9]{1,2}|[0-9]{4,17})|[0-9]{1,9}(?:e[+-]?[0-9]{1,3})?)(?![.,]?[0-9]))(?![a-z%/])"
)


def printed_loss(before: str, after: str) -> float | None:
    """Returns the loss on the line of a step: the first behind its number, else the last before it; None = none.

    Args:
        before: What the line has between the number before and this one.
        after: What it has behind the number.
    """
    behind = _LOSS.search(after[:_REACH])
    found = behind[1] if behind is not None else next(reversed(_LOSS.findall(before[-_REACH:])), "")
    loss = float(found.replace(",", ".")) if found else math.inf
    return loss if math.isfinite(loss) else None
