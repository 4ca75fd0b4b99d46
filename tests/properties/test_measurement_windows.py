"""Whatever comes and goes: a window reports steps done with exactly its co-located jobs, none twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from cotenant.job_settings import JobSettings
from cotenant_agent.devices.measurement_windows import (
    NEIGHBOURS_MAX,
    STEPS_MIN,
    WINDOW_MS_LEAST,
    MeasurementWindowRecorder,
)
from cotenant_agent.records import AttemptKey, AttemptObservation, LivingAttempt, MeasuredJob, MeasurementWindow
from tests.support.measurement_windows import observed_window

NAMES = "abcdef"
BEAT_MS = 500
PRIVATE = "f"
SETTINGS = JobSettings(global_batch_size=16)


def living_attempt(name: str) -> LivingAttempt:
    """Jobs a, b, c and f share one device, d and e another one; f keeps to itself."""
    job = None if name == PRIVATE else MeasuredJob(graph_sha256=name * 64, settings=SETTINGS)
    return LivingAttempt(
        key=AttemptKey(job_id=name, attempt=1, fence=1), gpu_ids=("g1" if name in "de" else "g0",), job=job
    )


TENANTS = {name: living_attempt(name) for name in NAMES}
LIVING = st.sets(st.sampled_from(NAMES)).map(sorted)
EVENTS = st.lists(
    st.one_of(LIVING, st.dictionaries(st.sampled_from(NAMES), st.integers(0, 30), min_size=1)), max_size=80
)


def window(name: str, steps: int) -> AttemptObservation:
    return observed_window(TENANTS[name].key, window_steps=steps, window_ms=BEAT_MS if steps else 0)


def co_located(name: str, living: list[str]) -> tuple[str, ...]:
    here = TENANTS[name].gpu_ids
    return tuple(other for other in living if other != name and TENANTS[other].gpu_ids == here)


def take_all(recorder: MeasurementWindowRecorder) -> Iterator[MeasurementWindow]:
    while due := recorder.due():
        yield from due
        recorder.mark_delivered([measurement_window.window_id for measurement_window in due])


@given(events=EVENTS)
def test_every_step_is_reported_at_most_once_and_with_its_own_colocated_jobs(
    events: list[list[str] | dict[str, int]],
) -> None:
    ids = count()
    recorder = MeasurementWindowRecorder(
        campaign="collected_00000000", devices={"g0": "one", "g1": "two"}, make_id=lambda: f"{next(ids):032x}"
    )
    living: list[str] = []
    done = Counter[tuple[str, tuple[str, ...]]]()
    for number, event in enumerate([*events, []]):
        if isinstance(event, list):
            living = event
            recorder.look([TENANTS[name] for name in living], number)
            continue
        windows = [window(name, steps) for name, steps in event.items() if name in living]
        done.update({(name, co_located(name, living)): steps for name, steps in event.items() if name in living})
        recorder.add(windows, [], number)
    reported = Counter[tuple[str, tuple[str, ...]]]()
    for measurement_window in take_all(recorder):
        others = tuple(sorted(job.graph_sha256[0] for job in measurement_window.others))
        reported[measurement_window.job.graph_sha256[0], others] += measurement_window.steps
        assert measurement_window.device == ("two" if measurement_window.job.graph_sha256[0] in "de" else "one")
        assert measurement_window.steps >= STEPS_MIN
        assert measurement_window.window_ms >= WINDOW_MS_LEAST
        assert len(others) <= NEIGHBOURS_MAX
    assert all(steps <= done[job_and_others] for job_and_others, steps in reported.items())
    assert not [job_and_others for job_and_others in reported if PRIVATE in (job_and_others[0], *job_and_others[1])]
