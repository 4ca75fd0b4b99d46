"""Whether the first rows of a device type agree with one another: there is no served version that could contradict.

Most rows of an honest set lie near what the others teach, or none does and nothing can be said. Where half of them are
predicted within `BULK_LOG_MAX` by models that have not seen their families, and more than a tenth is off by a factor of
two, two kinds of labels are mixed: another unit, another batch, a typing error. On the public sets honest labels leave
at most 4 % that far off wherever half is that near; a fifth times three leaves 17 to 26 %. The limits were chosen on
these sets. Fewer than `ROWS_MIN` rows are not judged.

All of them in one wrong unit agree with one another, but not with their graphs: on the public sets half of the rows of
a device type lie at .6 to 5.3 times what the graph says. Thirty times less is impossible: no device exceeds its peaks
so far, and no job holds so much less than its weights. Thirty times more is not: jobs that wait for their hosts take
up to a hundred times as long. So the upper limit lies between these and a unit, a factor of a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from predictor_service.features.devices import find_device_type
from predictor_service.fitting.known_rows import read_known_rows
from predictor_service.registry.held_out import HeldOut, HeldOutRows
from predictor_service.retraining.batch_check import hint_at_unit
from predictor_service.retraining.datasets import Dataset
from predictor_service.retraining.gate import Objection
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.selection.targets import MEMORY, STEP, Target

ROWS_MIN: Final = 30
BULK_LOG_MAX: Final = 0.3
FAR_LOG: Final = math.log(2.0)
FAR_RATIO_MAX: Final = 0.1
BELOW_LOG: Final = math.log(30.0)
ABOVE_LOG: Final = math.log(300.0)
UNIT_TOLERANCE: Final = 10.0
_SIZES: Final = frozenset({MEMORY.name, STEP.name})


def find_wrong_units(datasets: Sequence[Dataset], trained: HeldOut, served: HeldOut) -> list[Objection]:
    """Returns an objection to every target that is not served yet and whose rows no job can have left.

    Args:
        datasets: Everything that was learned from.
        trained: What the new version predicted of held-out rows.
        served: The same of the served version; empty where there is none.
    """
    new = [
        (name, target)
        for name, targets in sorted(trained.items())
        for target in (MEMORY, STEP)
        if target.name in targets and target.name not in served.get(name, {})
    ]
    return list(filter(None, (_judge_unit(datasets, name, target) for name, target in new)))


def _judge_unit(datasets: Sequence[Dataset], name: str, target: Target) -> Objection | None:
    device = find_device_type(name)
    rows = None if device is None else select_rows(datasets, target, device).learned
    if rows is None or not len(rows):
        return None
    off = np.log(rows.measured) - np.log(np.maximum(read_known_rows(rows).analytical_estimate, 1e-9))
    typical = float(np.median(off))
    if -BELOW_LOG < typical < ABOVE_LOG:
        return None
    hint = hint_at_unit(target, math.exp(typical), UNIT_TOLERANCE)
    why = f"half of {len(rows)} rows are {math.exp(typical):.3g} times what their graphs say, or beyond{hint}"
    return Objection(name, target.name, why)


def find_mixed_labels(trained: HeldOut, served: HeldOut) -> list[Objection]:
    """Returns an objection to every target of a device type that is not served yet and whose rows disagree.

    Args:
        trained: What the new version predicted of held-out rows.
        served: The same of the served version; empty where there is none.
    """
    return list(_find(trained, served))


def _find(trained: HeldOut, served: HeldOut) -> Iterator[Objection]:
    for device, targets in sorted(trained.items()):
        for target, rows in sorted(targets.items()):
            if target not in _SIZES or target in served.get(device, {}) or len(rows.row_ids) < ROWS_MIN:
                continue
            far = _far_rows(rows)
            if far:
                yield Objection(
                    device,
                    target,
                    f"{far} of {len(rows.row_ids)} rows are off by a factor of two or more from what most others "
                    "teach, so that two kinds of labels seem to be mixed",
                )


def _far_rows(rows: HeldOutRows) -> int:
    """How many rows are far off, where they are too many; else 0."""
    off = np.log(np.maximum(rows.measured, 1e-9)) - np.log(np.maximum(rows.predicted, 1e-9))
    distance = np.abs(off - np.median(off))
    far = int((distance > FAR_LOG).sum())
    return far if np.median(distance) <= BULK_LOG_MAX and far > FAR_RATIO_MAX * len(distance) else 0
