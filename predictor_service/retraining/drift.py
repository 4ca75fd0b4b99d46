"""How far recent predictions were from the measured outcomes, against their nominal coverage.

For every target of every device type, over the last outcomes of the version that answered last: the mean relative
error, and the share of outcomes inside their interval next to the nominal share. An alarm goes on when so few
were inside that chance explains it in less than one of a hundred windows, and goes off only when the share is back
within 5 percentage points of the nominal share, so that it does not flicker. The state follows from the outcomes alone:
it is replayed, never stored.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from predictor_service.outcome_journal import OutcomeJournal, PredictionEntry

WINDOW: Final = 100
ROWS_MIN: Final = 20
OUTCOMES_READ: Final = 5_000
CHANCE_MAX: Final = 0.01
RETURN_MARGIN: Final = 0.05
_PLACES: Final = ("utilization_ratio", "memory_bytes", "step_ms")
"""In the order of the intervals of a prediction."""
_MEASURED: Final = {
    "utilization_ratio": "utilization_ratio",
    "memory_bytes": "memory_peak_bytes",
    "step_ms": "step_ms_mean",
}
MEMORY_BOUND: Final = "memory_upper_99_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedOutcome:
    """One measured value and its prediction.

    Attributes:
        error_ratio: |predicted - measured| / measured.
        bias_ratio: predicted / measured - 1.
        is_covered: Whether the measured value is inside the predicted interval.
        promised_ratio: Share of outcomes that should be.
    """

    error_ratio: float
    bias_ratio: float
    is_covered: bool
    promised_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDrift:
    """State of one target of one device type.

    Attributes:
        device: Device type.
        target: Name with its unit; the 99 % memory bound is one of its own.
        model_version: Version whose predictions are judged.
        outcomes: In the window.
        error_ratio: Mean relative error.
        bias_ratio: Mean of predicted / measured - 1.
        covered_ratio: Share inside the interval, or below the bound.
        promised_ratio: Nominal coverage.
        is_alarming: Whether the alarm is on.
        alarms: How often it went on within the outcomes read.
    """

    device: str
    target: str
    model_version: str
    outcomes: int
    error_ratio: float
    bias_ratio: float
    covered_ratio: float
    promised_ratio: float
    is_alarming: bool
    alarms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """All targets that have outcomes."""

    targets: Sequence[TargetDrift]

    @property
    def is_alarming(self) -> bool:
        """Whether any alarm is on."""
        return any(target.is_alarming for target in self.targets)

    def as_json(self) -> dict[str, Any]:
        """For programs; ratios rounded to 6 places."""
        rows = [
            {
                name: round(value, 6) if isinstance(value := getattr(target, name), float) else value
                for name in TargetDrift.__dataclass_fields__
            }
            for target in self.targets
        ]
        return {"schema": "cotenant.drift/1", "is_alarming": self.is_alarming, "targets": rows}


def read_drift(journal: Path) -> DriftReport:
    """Reads the newest outcomes of a journal file and judges them."""
    with closing(OutcomeJournal(journal)) as opened:
        return measure_drift(opened.joined(OUTCOMES_READ))


def measure_drift(joined: Sequence[tuple[PredictionEntry, Mapping[str, Any]]]) -> DriftReport:
    """Judges outcomes.

    Args:
        joined: Outcomes with their predictions, oldest first. A new version starts with an empty window.
    """
    watches: dict[tuple[str, str], _Watch] = {}
    for entry, outcome in joined:
        for target, item in _compare(entry, outcome):
            watch = watches.setdefault((entry.device, target), _Watch())
            watch.see(entry.model_version, item)
    return DriftReport(
        targets=tuple(watch.state(device, target) for (device, target), watch in sorted(watches.items()))
    )


def _compare(entry: PredictionEntry, outcome: Mapping[str, Any]) -> Iterator[tuple[str, JoinedOutcome]]:
    content: Mapping[str, Any] = entry.content
    if entry.kind != "job" or "intervals" not in content or outcome.get("quality_flags"):
        return
    for target, (lower, upper) in zip(_PLACES, content["intervals"], strict=True):
        measured = outcome.get(_MEASURED[target])
        if measured is not None and measured > 0 and math.isfinite(measured):
            is_covered = lower <= measured <= upper
            yield target, _joined(content[target], measured, is_covered, content["confidence"])
            bound = content.get(MEMORY_BOUND)
            if target == "memory_bytes" and bound is not None:
                yield MEMORY_BOUND, _joined(bound, measured, measured <= bound, 0.99)


def _joined(predicted: float, measured: float, is_covered: bool, promised_ratio: float) -> JoinedOutcome:
    bias_ratio = predicted / measured - 1
    return JoinedOutcome(
        error_ratio=abs(bias_ratio), bias_ratio=bias_ratio, is_covered=is_covered, promised_ratio=promised_ratio
    )


@dataclass(slots=True)
class _Watch:
    """The window of one target, outcome after outcome."""

    model_version: str = ""
    window: deque[JoinedOutcome] = field(default_factory=lambda: deque(maxlen=WINDOW))
    is_alarming: bool = False
    alarms: int = 0

    def see(self, model_version: str, item: JoinedOutcome) -> None:
        if model_version != self.model_version:
            self.model_version, self.is_alarming = model_version, False
            self.window.clear()
        self.window.append(item)
        if len(self.window) < ROWS_MIN:
            return
        covered, promised_ratio = self._covered(), self._promised_ratio()
        if self.is_alarming:
            self.is_alarming = covered / len(self.window) < promised_ratio - RETURN_MARGIN
        elif covered <= fewest_by_chance(len(self.window), round(promised_ratio, 3)):
            self.is_alarming = True
            self.alarms += 1

    def state(self, device: str, target: str) -> TargetDrift:
        rows = len(self.window)
        return TargetDrift(
            device=device,
            target=target,
            model_version=self.model_version,
            outcomes=rows,
            error_ratio=sum(item.error_ratio for item in self.window) / rows,
            bias_ratio=sum(item.bias_ratio for item in self.window) / rows,
            covered_ratio=self._covered() / rows,
            promised_ratio=self._promised_ratio(),
            is_alarming=self.is_alarming,
            alarms=self.alarms,
        )

    def _covered(self) -> int:
        return sum(item.is_covered for item in self.window)

    def _promised_ratio(self) -> float:
        return sum(item.promised_ratio for item in self.window) / len(self.window)


@lru_cache(maxsize=4096)
def fewest_by_chance(rows: int, promised_ratio: float) -> int:
    """Largest number of covered outcomes that chance falls to or below in less than `CHANCE_MAX` of all windows.

    Args:
        rows: Independent outcomes.
        promised_ratio: Probability of each to be covered.

    Returns:
        -1 when even none covered would not be that rare.
    """
    probability, covered = 0.0, -1
    while covered < rows:
        at_next = math.comb(rows, covered + 1) * promised_ratio ** (covered + 1)
        probability += at_next * (1 - promised_ratio) ** (rows - covered - 1)
        if probability >= CHANCE_MAX:
            break
        covered += 1
    return covered


def describe_drift(report: DriftReport) -> str:
    """Writes a report for people."""
    if not report.targets:
        return "no outcome of a prediction is known yet"
    lines = [f"{'device, target':<44}{'outcomes':>9}{'error':>9}{'bias':>9}{'inside':>9}{'promised':>10}"]
    for item in report.targets:
        figures = (
            f"{item.outcomes:>9}{item.error_ratio:>9.1%}{item.bias_ratio:>+9.1%}"
            f"{item.covered_ratio:>9.1%}{item.promised_ratio:>10.1%}"
        )
        alarm = "  ALARM: retrain, `cotenant retrain --from-outcomes`" if item.is_alarming else ""
        lines.append(f"{item.device + ', ' + item.target:<44}{figures}{alarm}")
    return "\n".join(lines)
