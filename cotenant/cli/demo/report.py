"""The summary of a demo: sharing against exclusive execution, predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cotenant.cli.demo.exclusive import Outcome
from cotenant.cli.demo.job_tracker import Window
from cotenant.cli.demo.verification import Check
from cotenant.cli.tables import Column, Row
from cotenant.v1 import prediction_pb2, resources_pb2

SCHEMA = "cotenant.demo/1"
# A measurement counts when its window holds at least this many steps,
WINDOW_STEPS_LEAST = 20
# and of a pair when its steps took at least so long: from shorter ones the predictor learns nothing either.
PAIR_WINDOW_MS_LEAST = 2_000
# What a job measures alone divides every slowdown of it: as long as the shortest run alone that the demo gives a job
# without any. On a third of a core a window of two seconds is a sixth off in either direction.
ALONE_WINDOW_MS_LEAST = 4_000
# Load of others from which measurements on two cores are disturbed.
BUSY_LOAD = 0.7
EXCLUSIVE_BASIS = (
    "computed, not run: first in, first out on the same devices without sharing, from the step time that each job "
    "showed alone on a device and the shortest start-up of all, without any scheduling delay"
)

ERROR_COLUMNS = (
    Column(title="JOB", shrinks=True),
    Column(title="QUANTITY"),
    Column(title="PREDICTED", right=True),
    Column(title="INTERVAL", right=True),
    Column(title="MEASURED", right=True),
    Column(title="ERROR", right=True),
    Column(title="IN"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One prediction and the measured value.

    Attributes:
        job: Its job; "victim + other" for a slowdown.
        quantity: memory_bytes, utilization_ratio, step_ms or slowdown_ratio.
        predicted: The prediction before anything ran.
        measured: None = could not be measured (no window long enough).
        steps: Of the window that it was measured in; 0 = of the whole run.
    """

    job: str
    quantity: str
    predicted: float
    lower: float
    upper: float
    measured: float | None
    steps: int = 0

    @property
    def error(self) -> float | None:
        """Predicted minus measured: in ratio points for ratios, else relative to the measured value."""
        if self.measured is None:
            return None
        difference = self.predicted - self.measured
        return difference if self.quantity.endswith("_ratio") else difference / self.measured

    @property
    def inside(self) -> bool | None:
        """Whether the measured value lies in the predicted interval."""
        return None if self.measured is None else self.lower <= self.measured <= self.upper


@dataclass(slots=True, kw_only=True)
class DemoReport:
    """Everything that the demo found out.

    Attributes:
        solo: Job name -> step time, utilization and steps measured alone.
        start_up_ms: Shortest time that a job spent outside its steps (imports, data, end).
        calibration: What the agent measured of its devices before anything ran, or why nothing.
        crash: What happened around the kill; empty = the jobs were over before.
        load_before: Load average of the last minute before anything was started.
        processes_left: Command lines that were still there after the end.
    """

    policy: str
    devices: int
    load_before: float = 0.0
    jobs: Sequence[str] = ()
    shared: Outcome | None = None
    exclusive: Outcome | None = None
    solo: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    start_up_ms: float = 0.0
    comparisons: Sequence[Comparison] = ()
    calibration: Mapping[str, Any] = field(default_factory=dict)
    crash: Mapping[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    processes_left: Sequence[str] = ()

    @property
    def succeeded(self) -> bool:
        """Whether every check held; not whether sharing was faster."""
        return bool(self.checks) and all(check.holds for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Returns the report with stable keys."""
        return {
            "schema": SCHEMA,
            "policy": self.policy,
            "devices": self.devices,
            "load_before": self.load_before,
            "jobs": list(self.jobs),
            "shared": asdict(self.shared) if self.shared else None,
            "exclusive": asdict(self.exclusive) | {"basis": EXCLUSIVE_BASIS} if self.exclusive else None,
            "solo": {name: dict(values) for name, values in self.solo.items()},
            "start_up_ms": self.start_up_ms,
            "comparisons": [asdict(c) | {"error": c.error, "inside": c.inside} for c in self.comparisons],
            "calibration": dict(self.calibration),
            "crash": dict(self.crash),
            "checks": [asdict(check) for check in self.checks],
            "processes_left": list(self.processes_left),
            "succeeded": self.succeeded,
        }


def compare_job(
    name: str, predicted: prediction_pb2.PredictJobResponse, memory_peak_bytes: int, alone: Window
) -> list[Comparison]:
    """Compares the predictions of one job with what was measured.

    Args:
        name: The job.
        predicted: The predictions made before anything ran.
        memory_peak_bytes: Peak of the whole job.
        alone: Its steps while it had a device to itself.
    """
    measured = (
        ("memory_bytes", predicted.memory_bytes, float(memory_peak_bytes)),
        ("utilization_ratio", predicted.utilization_ratio, alone.utilization_ratio),
        ("step_ms", predicted.step_ms, alone.step_ms),
    )
    return [_compare(name, quantity, estimate, value) for quantity, estimate, value in measured]


def _compare(name: str, quantity: str, estimate: resources_pb2.Estimate, measured: float) -> Comparison:
    return Comparison(
        job=name,
        quantity=quantity,
        predicted=estimate.value,
        lower=estimate.lower,
        upper=estimate.upper,
        measured=measured or None,
    )


def is_measured_alone(window: Window) -> bool:
    """Whether a window alone is long enough to say what a job does with a device to itself."""
    return window.steps >= WINDOW_STEPS_LEAST and window.step_ms_sum >= ALONE_WINDOW_MS_LEAST


def compare_pairs(
    names: Mapping[str, str],
    windows: Mapping[tuple[str, str], Window],
    predicted: Mapping[tuple[str, str], tuple[float, float, float]],
    solo_step_ms: Mapping[str, float],
) -> list[Comparison]:
    """Compares predicted slowdowns with step times measured with one co-located job.

    Args:
        names: Job id -> name.
        windows: (victim id, other id) -> what was measured together.
        predicted: (victim name, other name) -> value, lower, upper, from before anything ran.
        solo_step_ms: Name -> step time alone.
    """
    comparisons = []
    for (victim_id, other_id), window in sorted(windows.items()):
        victim, other = names.get(victim_id, victim_id), names.get(other_id, other_id)
        if (victim, other) not in predicted:
            continue
        alone_ms = solo_step_ms.get(victim, 0.0)
        is_long = window.steps >= WINDOW_STEPS_LEAST and window.step_ms_sum >= PAIR_WINDOW_MS_LEAST
        value, lower, upper = predicted[victim, other]
        comparisons.append(
            Comparison(
                job=f"{victim} + {other}",
                quantity="slowdown_ratio",
                predicted=value,
                lower=lower,
                upper=upper,
                measured=window.step_ms / alone_ms - 1 if is_long and alone_ms > 0 else None,
                steps=window.steps,
            )
        )
    return comparisons


def comparison_rows(comparisons: Sequence[Comparison]) -> list[Row]:
    """Returns one table row per comparison."""
    return [_comparison_row(comparison) for comparison in comparisons]


# Quantity -> label with its unit, factor into that unit, digits.
_UNITS: Mapping[str, tuple[str, float, int]] = {
    "memory_bytes": ("memory MiB", 1 / 2**20, 0),
    "utilization_ratio": ("utilization %", 100.0, 0),
    "step_ms": ("step ms", 1.0, 1),
    "slowdown_ratio": ("slowdown %", 100.0, 0),
}


def _comparison_row(comparison: Comparison) -> Row:
    label, factor, digits = _UNITS[comparison.quantity]

    def show(value: float | None) -> str:
        return "-" if value is None else f"{value * factor:.{digits}f}"

    error, inside = comparison.error, comparison.inside
    unit = "pt" if comparison.quantity.endswith("_ratio") else "%"
    cells = (
        comparison.job,
        label,
        show(comparison.predicted),
        f"{show(comparison.lower)} .. {show(comparison.upper)}",
        show(comparison.measured),
        f"{error * 100:+.0f} {unit}" if error is not None else "-",
        "-" if inside is None else "yes" if inside else "NO",
    )
    return Row(cells=cells, styles=((6, "red" if inside is False else "green"),))


def error_summary(comparisons: Sequence[Comparison]) -> list[str]:
    """Returns per quantity the mean absolute error and how many intervals held."""
    lines = []
    for quantity, (label, _, _) in _UNITS.items():
        measured = [c for c in comparisons if c.quantity == quantity and c.error is not None]
        if measured:
            mean = sum(abs(c.error or 0.0) for c in measured) / len(measured)
            unit = "points" if quantity.endswith("_ratio") else "%"
            held = sum(bool(c.inside) for c in measured)
            lines.append(
                f"{label.split()[0]}: mean absolute error {mean * 100:.0f} {unit}, interval held {held}/{len(measured)}"
            )
    return lines


def busy_text(load: float) -> str:
    """Returns the warning for a machine that others use."""
    return (
        f"this machine was busy before the demo began (load {load:.1f}): what others take from the two cores shows in "
        "every measured time and utilization, and no prediction knows it"
    )


def verdict_lines(report: DemoReport) -> list[str]:
    """Returns the comparison with exclusive execution in words, good or bad."""
    if report.shared is None or report.exclusive is None:
        return ["no comparison: not every job has both finished and been measured alone"]
    lines = []
    for label, shared, exclusive in (
        ("makespan", report.shared.makespan_ms, report.exclusive.makespan_ms),
        ("mean JCT", report.shared.mean_jct_ms, report.exclusive.mean_jct_ms),
    ):
        change = shared / exclusive - 1
        word = "shorter" if change < 0 else "LONGER"
        lines.append(
            f"{label:9} shared {shared / 1000:6.1f} s (measured)  exclusive {exclusive / 1000:6.1f} s (computed)  "
            f"{abs(change):.0%} {word}"
        )
    if report.shared.makespan_ms > report.exclusive.makespan_ms:
        lines.append("sharing lost against exclusive execution in this run")
    if report.load_before > BUSY_LOAD:
        lines.append(busy_text(report.load_before))
    return lines
