"""Expected starts as messages, and what a caller may ask for instead of what is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping

from cotenant.errors import InputError
from cotenant.quantities import parse_bytes
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.start_forecasts import RUNS_MIN, ExpectedWait, Forecast, ForecastError, StartForecasts
from scheduler_service.core.records import Share
from scheduler_service.errors import FieldViolation
from scheduler_service.grpc_api import validation
from scheduler_service.policy_registry import policy_names

PATIENCE_S = 8.0
"""How long a caller waits for a simulation, if it has so long."""
CHANGES_PATIENCE_S = 30.0
_PATIENCE_RATIO = 0.8
_CHANGES_MAX = 10


async def add_expected_starts(
    answer: scheduling_pb2.ExplainJobResponse,
    request: scheduling_pb2.ExplainJobRequest,
    forecasts: StartForecasts,
    seconds_left: float | None,
) -> None:
    """Add to an answer about a waiting job when it starts, and when it would with the changes asked for.

    Raises:
        OverloadedError: Too many what-if questions.
    """
    coming = [_expected_start(forecasts, request.job_id, {}, seconds_left=seconds_left)]
    if request.changes:
        changes = read_changes(request.changes)
        coming.append(_expected_start(forecasts, request.job_id, changes, seconds_left=seconds_left))
    found = await asyncio.gather(*coming)
    answer.expected_start.CopyFrom(found[0])
    if request.changes:
        answer.changed_start.CopyFrom(found[1])


async def _expected_start(
    forecasts: StartForecasts, job_id: str, changes: Mapping[str, object], *, seconds_left: float | None
) -> scheduling_pb2.ExpectedStart:
    """Return when a waiting job starts, or why that is not known.

    Args:
        forecasts: Who is asked.
        job_id: The job.
        changes: What would be different (`read_changes`); empty = nothing.
        seconds_left: Until the caller's deadline; None = there is none.

    Raises:
        OverloadedError: Too many what-if questions.
    """
    longest_s = CHANGES_PATIENCE_S if changes else PATIENCE_S
    patience_s = longest_s if seconds_left is None else max(min(longest_s, _PATIENCE_RATIO * seconds_left), 0.0)
    try:
        if changes:
            found = await forecasts.with_changes({**changes, "job_id": job_id}, patience_s=patience_s)
        else:
            found = await forecasts.of_queue(job_id, patience_s=patience_s)
    except ForecastError as error:
        return scheduling_pb2.ExpectedStart(unknown_reason=str(error))
    return _as_message(found, job_id)


def _as_message(forecast: Forecast, job_id: str) -> scheduling_pb2.ExpectedStart:
    answer = scheduling_pb2.ExpectedStart(
        waiting_jobs=len(forecast.waits), confidence=forecast.confidence, as_of_ms=forecast.as_of_ms
    )
    wait = forecast.waits.get(job_id)
    if wait is None:
        answer.unknown_reason = "the job came after the newest simulation; ask again in some seconds"
        return answer
    answer.position = wait.position
    if wait.wait_ms is None or wait.wait_lower_ms is None or wait.wait_upper_ms is None:
        answer.unknown_reason = _why_unknown(forecast, wait)
        return answer
    answer.wait_ms, answer.wait_lower_ms, answer.wait_upper_ms = wait.wait_ms, wait.wait_lower_ms, wait.wait_upper_ms
    return answer


def _why_unknown(forecast: Forecast, wait: ExpectedWait) -> str:
    if wait.depends_on:
        return (
            f"it may have to wait for {', '.join(wait.depends_on)}, and how long that runs is not known: that takes "
            "--steps, and a prediction or a measurement"
        )
    if forecast.runs < RUNS_MIN:
        return "the queue is too long to be simulated often enough"
    return f"it did not start in the simulation: {wait.held_by.rstrip('.') or 'see the reason'}"


def explanation_violations(request: scheduling_pb2.ExplainJobRequest) -> Iterator[FieldViolation]:
    """Yield what is wrong with asking for an explanation."""
    yield from validation.job_id_violations(request.job_id)
    changes = request.changes
    if changes and not request.expected_start:
        yield FieldViolation(field="changes", description="need expected_start: they change what is simulated")
    if len(changes) > _CHANGES_MAX:
        yield FieldViolation(field="changes", description=f"may be {_CHANGES_MAX} at most")
        return
    for name, text in sorted(changes.items()):
        reader = _READERS.get(name)
        if reader is None:
            description = f"{name[:64]!r} cannot be changed; what can is {', '.join(_READERS)}"
            yield FieldViolation(field="changes", description=description)
            continue
        try:
            reader(text)
        except (InputError, ValueError) as error:
            yield FieldViolation(field=f"changes.{name}", description=f"{text[:64]!r}: {error}")


def read_changes(changes: Mapping[str, str]) -> Mapping[str, object]:
    """Return valid changes as the simulator takes them."""
    return {_NAMES.get(name, name): _READERS[name](text) for name, text in changes.items()}


def _integer(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdecimal() or len(text) > 18 or not 1 <= int(text) <= most:
            raise ValueError(f"must be a whole number from 1 to {most}")
        return int(text)

    return read


def _policy(text: str) -> str:
    if text not in policy_names():
        raise ValueError(f"is no policy; there are {', '.join(policy_names())}")
    return text


def _share(text: str) -> str:
    try:
        return Share(text).value
    except ValueError:
        raise ValueError("must be never, safe or any") from None


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= validation.MAX_SLOWDOWN_RATIO_MAX:
        raise ValueError(f"must be a number from 0 to {validation.MAX_SLOWDOWN_RATIO_MAX:g}; 0.2 = 20 % slower")
    return value


def _memory(text: str) -> int:
    value = parse_bytes(text)
    if not 0 < value <= validation.BYTES_MAX:
        raise ValueError("must be a size above 0, such as 4GiB")
    return value


_READERS: Mapping[str, Callable[[str], object]] = {
    "policy": _policy,
    "batch_size": _integer(validation.BATCH_MAX),
    "gpus": _integer(validation.GPUS_MAX),
    "steps": _integer(validation.STEPS_MAX),
    "share": _share,
    "max_slowdown": _ratio,
    "memory": _memory,
}
_NAMES = {"memory": "memory_bytes"}
