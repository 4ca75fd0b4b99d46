"""Which features of a job are unlike everything that was measured, in words with the value and what was trained."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from predictor_service.features.job_features import FEATURES
from predictor_service.features.operator_times import FloatArray
from predictor_service.registry.served_version import ServedTarget

UNUSUAL_MAX: Final = 3
_RANGES_MAX: Final = 1_024
_UNITS: Final = {feature.name: feature.unit for feature in FEATURES}
_WORDS: Final = {
    "log_activation_bytes": "activations",
    "log_memory_bytes": "counted memory",
    "log_roofline_ms": "step at the device's peaks",
    "log_batch": "batch",
    "activation_memory_ratio": "activations in counted memory",
    "input_wait_ratio": "share of waiting for input",
    "optimizer_slots": "numbers kept per parameter by the optimizer",
    "is_training": "training (1) or inference (0)",
}
_SETTINGS: Final = ("is_training", "optimizer_slots")
"""Named first: what a job is asked to do, not how large it is."""
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30


class UnusualFeatures(NamedTuple):
    """Why an input is not in domain.

    Attributes:
        texts: At most `UNUSUAL_MAX`, worst first; none where it is in domain.
        is_beyond: Whether it is outside of what was trained, so that no held-out row calibrated its range; else it is
            inside by each feature alone and unlike every measured job by several of them.
    """

    texts: tuple[str, ...]
    is_beyond: bool


OF_OTHERS: Final = "measured by others (public sets), not on this machine"
USUAL: Final = UnusualFeatures((), False)


def find_unusual(
    model: ServedTarget, vector: FloatArray, precision: str, *, is_familiar: bool = True
) -> UnusualFeatures:
    """Finds what is unusual about a job.

    Args:
        model: Of the target that is asked about.
        vector: Of the job, shape (len(FEATURES),).
        precision: Of the job; models of memory do not see it.
        is_familiar: Whether its network is made of operators as networks of known families are.
    """
    row = model.select(vector[None, :])
    settings = _say_precision(model, precision)
    domain, names, room = model.record.domain, model.record.columns, UNUSUAL_MAX - len(settings)
    values = row[0].astype(np.float64)
    outside = domain.outside(values)
    if is_familiar and not settings and not outside and bool(model.contains(row)[0]):
        return USUAL
    low, high = domain.trained
    outside.sort(key=lambda place: names[place] not in _SETTINGS)
    beyond = [
        f"{_word(names[place])} {_shown(names[place], values[place])}, trained "
        f"{_range(names[place], low[place], high[place])}"
        for place in outside[:room]
    ]
    differences = _differences(model, values) if is_familiar else _mix_differences(model, vector)
    texts = (*settings, *beyond) or tuple(differences)
    return UnusualFeatures(tuple(texts[:UNUSUAL_MAX]), bool(settings or beyond))


def as_known_here(model: ServedTarget, found: UnusualFeatures, untaught: tuple[str, ...]) -> UnusualFeatures:
    """The same, after what makes every answer unsure.

    Args:
        model: Of rows that others measured, on machines of theirs, or of own rows.
        found: What is unusual about the job.
        untaught: Settings that no model sees, in words.
    """
    texts = (*((OF_OTHERS,) if model.record.is_public else ()), *untaught)
    return UnusualFeatures((*texts, *found.texts)[:UNUSUAL_MAX], True) if texts else found


def _say_precision(model: ServedTarget, precision: str) -> list[str]:
    if not model.is_precision_new(precision):
        return []
    return [f"precision {precision}, trained {', '.join(model.record.precisions)}"]


def _differences(model: ServedTarget, values: FloatArray) -> Iterator[str]:
    """In what a job differs most from the nearest measured one."""
    places, nearest = model.record.domain.farthest(values)
    for place in places[:UNUSUAL_MAX]:
        name = model.record.columns[place]
        yield f"{_word(name)} {_shown(name, values[place])}, nearest measured job {_shown(name, nearest[place])}"


def _mix_differences(model: ServedTarget, vector: FloatArray) -> Iterator[str]:
    """Of which operators a network has another share than the nearest measured one."""
    mix = model.record.operator_mix
    for name, share, nearest in mix.differences(vector)[:UNUSUAL_MAX] if mix else ():
        yield f"{name.replace('_', ' ')} {share:.0%} of operators, nearest measured network {nearest:.0%}"


def _word(name: str) -> str:
    return _WORDS.get(name) or name.removeprefix("log_").removesuffix("_ratio").replace("_", " ")


@lru_cache(_RANGES_MAX)
def _range(name: str, low: float, high: float) -> str:
    first, last = _shown(name, low), _shown(name, high)
    return first if first == last else f"{first} to {last}"


def _shown(name: str, value: float) -> str:
    unit = _UNITS.get(name, "")
    if unit == "ln(bytes)":
        return _size(math.exp(value))
    if unit == "ln(1 + count)":
        return f"{math.expm1(value):z,.0f}"
    if unit.startswith("ln("):
        plain, inner = math.exp(value), unit.removeprefix("ln(").removesuffix(")")
        return f"{plain:.3g} {inner}" if inner not in {"count", "samples"} else f"{plain:,.0f}"
    return f"{value:z.0%}" if unit.startswith("share") else f"{value:z.4g}"  # z: the margin below 0 reads 0, not -0


def _size(size_bytes: float) -> str:
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB")):
        if size_bytes >= unit / 10:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes / _KIB:.3g} KiB"
