"""An event log of an earlier version tells today's scheduler the same truth."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from cotenant.job_settings import stored_settings
from cotenant.job_settings_message import unchecked_settings
from cotenant.v1 import resources_pb2
from scheduler_service.adapters.storage.recovery import Recovered, recover
from scheduler_service.adapters.storage.sqlite_event_log import SqliteEventLog
from scheduler_service.core.codec import decode, decode_event, encode, encode_event
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.events import JobCancelled
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.policy_registry import make_policy
from tests.goldens.stored_story import told_story, truth
from tests.goldens.write_goldens import GOLDENS
from tests.support.cases import for_each
from tests.support.scheduling import job

EVENTS: list[dict[str, Any]] = json.loads((GOLDENS / "events.json").read_text())
JOB: dict[str, Any] = json.loads((GOLDENS / "job_record.json").read_text())
TRUTH: dict[str, Any] = json.loads((GOLDENS / "scheduler_truth.json").read_text())


def settings_of_today(stored: dict[str, Any]) -> dict[str, Any]:
    """Settings that were kept in the contract's JSON, whose name of the batch is another one now."""
    if not stored:
        return {}
    named = {("global_batch_size" if name == "batch_size" else name): value for name, value in stored.items()}
    return stored_settings(unchecked_settings(json_format.ParseDict(named, resources_pb2.JobSettings())))


def as_told_today(job: dict[str, Any]) -> dict[str, Any]:
    """What was true of a job; its settings stood twice in it."""
    launch = {name: value for name, value in job["launch"].items() if name != "settings"}
    return {**job, "launch": launch, "settings": settings_of_today(job["settings"])}


TRUTH["jobs"] = {job_id: as_told_today(job) for job_id, job in TRUTH["jobs"].items()}
# It did 200 steps of 100: that has a name of its own now.
assert TRUTH["jobs"]["job-1"]["steps_done"] == 200
TRUTH["jobs"]["job-1"]["reason"] = "FINISHED_BEYOND"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    shutil.copytree(GOLDENS / "scheduler", tmp_path / "scheduler")
    return tmp_path / "scheduler"


def recovered(state: Path) -> Recovered:
    log = SqliteEventLog(state)
    try:
        return recover(
            log,
            new_engine=lambda: SchedulerEngine(make_policy=make_policy, policy="sjf_bsbf"),
            restored_engine=lambda found: SchedulerEngine.restore(found, make_policy=make_policy),
        )
    finally:
        log.close()


def holds(found: Any, stored: Any) -> bool:
    """Whether everything that was stored is there; later versions may say more."""
    if isinstance(stored, dict):
        return isinstance(found, dict) and all(name in found and holds(found[name], stored[name]) for name in stored)
    if isinstance(stored, list):
        return len(found) == len(stored) and all(map(holds, found, stored))
    return bool(found == stored)


@for_each("stored", EVENTS)
def test_a_stored_event_says_what_it_said(stored: dict[str, Any]) -> None:
    again = encode_event(decode_event(stored))
    assert decode_event(again) == decode_event(stored)
    settings = {"settings": settings_of_today(stored["settings"])} if "settings" in stored else {}
    assert holds(again, {**stored, **settings})


def test_a_stored_job_says_in_every_field_what_it_said_however_its_record_is_cut_today() -> None:
    found = decode(JobRecord, JOB)
    assert holds(encode(JobRecord, found), JOB)
    blank = encode(JobRecord, JobRecord(request=job("a")))
    assert not [name for name, value in JOB.items() if value == blank[name]]


def test_a_snapshot_and_the_events_after_it_become_the_same_jobs_and_nodes(state: Path) -> None:
    found = recovered(state)
    assert {**truth(found.engine), "last_job_number": found.numbers.last} == TRUTH


def test_the_story_told_again_is_the_story_that_was_stored() -> None:
    assert truth(told_story().engine) == {name: TRUTH[name] for name in truth(told_story().engine)}


def test_the_next_event_follows_the_stored_ones(state: Path) -> None:
    found = recovered(state)
    found.engine.handle(JobCancelled(at_ms=found.last_at_ms + 1, job_id="job-6"))
    assert truth(found.engine)["jobs"]["job-6"]["phase"] == "cancelled"


def test_the_log_is_exported_for_the_simulator(state: Path, tmp_path: Path) -> None:
    output = tmp_path / "log.jsonl"
    command = [
        sys.executable,
        "-m",
        "scheduler_service",
        "export-log",
        "--state-dir",
        str(state),
        "--output",
        str(output),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = [json.loads(line).get("kind") for line in output.read_text().splitlines()]
    assert kinds[-1] == "JobStopped"
