"""What a job's owner states of its moves, its memory and its batch: in a job file, or by flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotenant.client_errors import InputError
from cotenant.job_file import parse_job
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.jobs.translate_jobs import job_request
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

COMMAND = ["python", "train.py"]


@pytest.fixture
def submission(cotenant: CommandLine, scheduler: FakeScheduler) -> tuple[CommandLine, FakeScheduler]:
    """The command line, and what it hands jobs in to."""
    return cotenant, scheduler


@pytest.mark.parametrize(
    ("content", "expected"),
    [({}, (False, 0)), ({"no_prepare": True}, (True, 0)), ({"migration_cost": "40s"}, (False, 40_000))],
)
def test_a_job_file_states_them_and_policies_know_them(content: dict[str, object], expected: tuple[bool, int]) -> None:
    request = job_request("job", parse_job({"command": COMMAND, "steps": 5, **content}, folder=Path()).spec)
    assert (request.no_preparation, request.migration_cost_ms) == expected


@pytest.mark.parametrize("content", [{"no_prepare": "no"}, {"migration_cost": "much"}, {"migration_cost": -1}])
def test_anything_else_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(InputError):
        parse_job({"command": COMMAND, **content}, folder=Path())


def test_flags_state_them_as_well(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    flags = ("--no-prepare", "--migration-cost", "1m")
    assert cotenant("submit", "--name", "job", "--steps", "5", *flags, "--", *COMMAND).code == 0
    (request,) = [item for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]
    assert (request.spec.no_preparation, request.spec.migration_cost_ms) == (True, 60_000)


def test_that_a_job_releases_memory_is_said_in_its_file_or_by_a_flag(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    spec = parse_job({"command": COMMAND, "steps": 5, "releases_memory": True}, folder=Path()).spec
    assert job_request("job", spec).releases_memory
    assert cotenant("submit", "--name", "job", "--steps", "5", "--releases-memory", "--", *COMMAND).code == 0
    (request,) = [item for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]
    assert request.spec.releases_memory
    with pytest.raises(InputError):
        parse_job({"command": COMMAND, "releases_memory": "often"}, folder=Path())


@pytest.mark.parametrize(
    ("cuts_batch", "script", "expected"),
    [
        (True, "", False),
        (False, "job.sub_batches(batch)", True),
        (None, "job.sub_batches(batch)", False),
        (None, "", True),
    ],
)
def test_that_a_job_cuts_no_batch_is_said_in_its_file_or_by_a_flag_or_read_off_its_script(
    cuts_batch: bool | None, script: str, expected: bool, submission: tuple[CommandLine, FakeScheduler], tmp_path: Path
) -> None:
    cotenant, scheduler = submission
    (tmp_path / "train.py").write_text(script)
    said = {} if cuts_batch is None else {"cuts_batch": cuts_batch}
    (tmp_path / "job.yaml").write_text(json.dumps({"name": "job", "command": COMMAND, "steps": 5, **said}))
    flags = ["--cuts-batch" if cuts_batch else "--whole-batch"] * len(said)
    for words in ([str(tmp_path / "job.yaml")], ["--workdir", str(tmp_path), *flags, "--", *COMMAND]):
        assert cotenant("submit", "--name", "job", *words).code == 0
    specs = [item.spec for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]
    assert [job_request("job", spec).takes_whole_batch for spec in specs] == [expected] * 2
