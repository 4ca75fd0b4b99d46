"""A field that was renamed, or moved into a part, is stored and read under the key that older logs have."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest

from scheduler_service.core import codec
from scheduler_service.core.errors import CodecError
from scheduler_service.core.jobs.job_parts import (
    AttemptExit,
    AttemptMeasurements,
    AttemptShape,
    GrantedCheckpoints,
    JobCounts,
    JobMoves,
    JobTimes,
    ReportedValues,
    Submission,
)
from scheduler_service.core.jobs.job_records import JobRecord
from tests.support.scheduling import job

PARTS = ("submission", "times", "shape", "measured", "counts", "exit", "granted", "moves", "reported")


@dataclass(frozen=True)
class Held:
    """A record with a field of a new name."""

    abandoned: tuple[int, ...]
    other: int = 0


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_STORED_NAMES", {"Held": {"abandoned": "ghosts"}})
    codec._codec.cache_clear()


@pytest.mark.usefixtures("renamed")
def test_a_renamed_field_keeps_its_stored_key() -> None:
    stored: dict[str, Any] = codec.encode(Held, Held(abandoned=(1,)))
    assert stored == {"ghosts": [1], "other": 0}
    assert codec.decode(Held, {"ghosts": [1]}) == Held(abandoned=(1,))


@pytest.mark.usefixtures("renamed")
def test_the_new_name_is_no_stored_key() -> None:
    with pytest.raises(CodecError, match="unknown abandoned"):
        codec.decode(Held, {"abandoned": [1]})


def _measured_job() -> JobRecord:
    return JobRecord(
        request=job("a"),
        steps_done=3,
        step_ms=2.0,
        measured=AttemptMeasurements(windows_seen=4, solo_windows_step_ms=(1.0,)),
        counts=JobCounts(restarts=5),
        exit=AttemptExit(exit_class="lost"),
        submission=Submission(launch={"ranks": 2}, graph_sha256="ab"),
        times=JobTimes(started_at_ms=9),
        shape=AttemptShape(micro_batch_size=6),
        granted=GrantedCheckpoints(fences=(7,)),
        moves=JobMoves(move_ms=8),
        reported=ReportedValues(loss=0.5),
    )


def test_the_parts_of_a_job_are_stored_among_its_own_fields() -> None:
    stored = codec.encode(JobRecord, _measured_job())
    assert stored.keys().isdisjoint(PARTS)
    assert (stored["step_ms"], stored["solo_windows_step_ms"], stored["restarts"]) == (2.0, [1.0], 5)
    assert (stored["steps_done"], stored["windows_seen"], stored["exit_class"]) == (3, 4, "lost")
    assert (stored["granted_fences"], stored["move_ms"], stored["loss"]) == ([7], 8, 0.5)
    assert (stored["launch"], stored["graph_sha256"], stored["settings"]) == ({"ranks": 2}, "ab", None)
    assert (stored["submitted_at_ms"], stored["started_at_ms"]) == (0, 9)
    assert (stored["sub_batch"], stored["accumulation_steps"]) == (6, 1)
    assert codec.decode(JobRecord, stored) == _measured_job()


def test_no_two_parts_of_a_job_are_stored_under_one_key() -> None:
    parts = [getattr(_measured_job(), name) for name in PARTS]
    own = len(fields(JobRecord)) - len(PARTS)
    assert len(codec.encode(JobRecord, _measured_job())) == own + sum(len(fields(part)) for part in parts)


def test_a_part_that_an_older_scheduler_did_not_write_takes_its_defaults() -> None:
    stored = codec.encode(JobRecord, _measured_job())
    del stored["restarts"], stored["windows_seen"]
    found = codec.decode(JobRecord, stored)
    assert (found.counts, found.measured.windows_seen, found.step_ms) == (JobCounts(), 0, 2.0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"counts": {"restarts": 1}}, "JobRecord: unknown counts"),
        ({"restarts": "5"}, "JobRecord: JobCounts: expected int, found '5'"),
        ({"restart": 5}, "JobRecord: unknown restart"),
    ],
)
def test_a_damaged_part_of_a_job_is_refused_by_name(damage: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        codec.decode(JobRecord, codec.encode(JobRecord, _measured_job()) | damage)


def test_a_job_that_is_no_object_is_refused() -> None:
    with pytest.raises(CodecError, match="JobRecord: expected an object, found list"):
        codec.decode(JobRecord, [1])
