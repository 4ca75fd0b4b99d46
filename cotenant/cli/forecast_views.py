"""What is foreseen of a job, in words: its end by a target loss, its step times on other GPUs, when it starts."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Final

from cotenant import quantities
from cotenant.counted_nouns import agreed
from cotenant.v1 import scheduling_pb2

_BASES: Final[Mapping[int, str]] = {
    scheduling_pb2.STEP_TIME_BASIS_MEASURED: "measured",
    scheduling_pb2.STEP_TIME_BASIS_FITTED: "fitted to {} measurements",
    scheduling_pb2.STEP_TIME_BASIS_CORRECTED: "foreseen, corrected by {} measured",
    scheduling_pb2.STEP_TIME_BASIS_FORESEEN: "foreseen",
}
_NOW_MS = 1_000
_UNITS = ((90_000, 1_000, "s"), (90 * 60_000, 60_000, "min"), (36 * 3_600_000, 3_600_000, "h"), (inf, 86_400_000, "d"))


def steps_done_text(job: scheduling_pb2.Job) -> str:
    """Returns how many optimizer steps a job has made, for a column; ? = it has finished uncounted."""
    return "?" if job.reason.code == "FINISHED_UNCOUNTED" else str(job.steps_done)


def steps_text(job: scheduling_pb2.Job) -> str:
    """Returns how many optimizer steps a job has, for a column: stated, as its script says, foreseen (~) or ?."""
    if job.training_end.steps_total:
        return f"~{job.training_end.steps_total}"
    return str(known_steps(job) or "?")


def known_steps(job: scheduling_pb2.Job) -> int:
    """Returns how many optimizer steps a job has, as its owner stated or else its script says; 0 = not known."""
    return job.spec.steps_total or job.script_steps_total


def training_end_lines(job: scheduling_pb2.Job) -> list[tuple[str, str]]:
    """Returns when a job with a target loss is expected to end, as labelled lines."""
    if not job.HasField("training_end"):
        return []
    end, target = job.training_end, f"at loss {job.spec.target_loss:.4g}"
    if end.reached:
        return [("ends", f"{target}, which was reached after {end.steps_total:,} steps")]
    if not end.steps_total:
        most = f", after {job.spec.steps_total:,} steps at most" if job.spec.steps_total else ""
        return [("ends", f"{target}{most}; when is not foreseeable yet: {end.unknown_reason}")]
    interval = f"{end.steps_lower:,} to {end.steps_upper:,} at {quantities.format_percent(end.confidence)}"
    doubt = "" if end.reliable else "; the curves disagree, so no policy plans with it"
    return [("ends", f"{target}, after {end.steps_total:,} steps ({interval}), fitted to {end.losses} losses{doubt}")]


def step_time_lines(job: scheduling_pb2.Job) -> list[tuple[str, str]]:
    """Returns the step time alone on each number of GPUs that a job may have."""
    return [
        ("step alone", f"on {_count(known)} {quantities.format_ms(known.step_ms)} ({_basis(known)}), {one.device}")
        for one in job.predictions
        for known in one.step_times
    ]


def _count(known: scheduling_pb2.KnownStepTime) -> str:
    servers = f" with {known.servers} server(s)" if known.servers else ""
    return agreed(f"{known.gpus} GPU(s){servers}")


def _basis(known: scheduling_pb2.KnownStepTime) -> str:
    return _BASES.get(known.basis, "basis not known").format(known.measurements)


def expected_start_text(expected: scheduling_pb2.ExpectedStart, *, at_ms: int) -> str:
    """Returns the line, e.g. starts in about 12 min (8 to 25), position 3 of 9, as of 20 s ago.

    Args:
        expected: As the scheduler answered.
        at_ms: Now; what has passed since the answer's instant is taken off.
    """
    age_ms = max(at_ms - expected.as_of_ms, 0) if expected.as_of_ms else 0
    position = f"position {expected.position} of {expected.waiting_jobs}" if expected.position else ""
    age = f"as of {_about(age_ms, age_ms)} ago" if expected.as_of_ms else ""
    if not expected.HasField("wait_ms"):
        start = f"start not known: {expected.unknown_reason or 'the scheduler does not say why'}"
        return "; ".join([start, ", ".join(filter(None, [position, age]))]).removesuffix("; ")
    lower_ms, middle_ms, upper_ms = (
        max(wait_ms - age_ms, 0) for wait_ms in (expected.wait_lower_ms, expected.wait_ms, expected.wait_upper_ms)
    )
    lower, upper = _number(lower_ms, upper_ms), _number(upper_ms, upper_ms)
    range_text = f" ({lower} to {upper})" if lower != upper else ""
    start = f"starts in about {_about(middle_ms, upper_ms)}{range_text}" if upper_ms >= _NOW_MS else "starts now"
    return ", ".join(filter(None, [start, position, age]))


def _unit(longest_ms: int) -> tuple[int, str]:
    return next((unit_ms, name) for below_ms, unit_ms, name in _UNITS if longest_ms < below_ms)


def _number(duration_ms: int, longest_ms: int) -> str:
    return f"{duration_ms / _unit(longest_ms)[0]:.0f}"


def _about(duration_ms: int, longest_ms: int) -> str:
    return f"{_number(duration_ms, longest_ms)} {_unit(longest_ms)[1]}"
