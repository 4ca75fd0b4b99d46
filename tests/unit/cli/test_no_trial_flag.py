"""How a job's owner refuses trials, in the file or by a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.client_errors import InputError
from cotenant.job_file import parse_job
from cotenant.v1 import scheduling_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

COMMAND = ["python", "train.py"]


@pytest.mark.parametrize(
    ("content", "expected"), [({}, False), ({"no_trial": False}, False), ({"no_trial": True}, True)]
)
def test_a_job_file_may_refuse_trials(content: dict[str, object], expected: bool) -> None:
    assert parse_job({"command": COMMAND, "steps": 5, **content}, folder=Path()).spec.no_trial is expected


def test_anything_but_true_and_false_is_refused() -> None:
    with pytest.raises(InputError, match="true or false"):
        parse_job({"command": COMMAND, "no_trial": "no"}, folder=Path())


@pytest.mark.parametrize(("flags", "expected"), [((), False), (("--no-trial",), True)])
def test_a_flag_refuses_them_as_well(
    cotenant: CommandLine, scheduler: FakeScheduler, flags: tuple[str, ...], expected: bool
) -> None:
    assert cotenant("submit", "--name", "job", "--steps", "5", *flags, "--", *COMMAND).code == 0
    (request,) = [item for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]
    assert request.spec.no_trial is expected
