"""The helper for training scripts that end at a loss (`cotenant submit --target-loss`).

One file, standard library only, as `cotenant.job`: it may be copied next to a script and used alone.
"""

from __future__ import annotations

import math
import os
from typing import SupportsFloat


def target_loss() -> float | None:
    """The loss at which this job's training may end; None = it ends by its steps."""
    target = float(os.environ.get("COTENANT_TARGET_LOSS") or 0)
    return target if target > 0 else None


def reached_target(loss: SupportsFloat) -> bool:
    """Whether training may end, since its loss has come down to the target; False in a job without one.

    Leave the training loop then and end with success. Ask with a mean over many steps or an evaluation: the loss of one
    batch may be low by chance. Ranks of a gang must agree: all-reduce the loss first.

    Args:
        loss: a number or a detached scalar tensor; one that is no number has not come down.
    """
    target = target_loss()
    return target is not None and math.isfinite(number := float(loss)) and number <= target
