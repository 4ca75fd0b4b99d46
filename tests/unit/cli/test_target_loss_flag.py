"""A loss in place of a number of steps: how it is stated, and what its owner reads of the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cotenant.client_errors import InputError
from cotenant.job_file import parse_job
from cotenant.target_loss import reached_target, target_loss
from cotenant.v1 import scheduling_pb2
from tests.support.cases import for_each
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

COMMAND = ["python", "train.py"]


@for_each("value", [0, -1, "nan", ".inf", float("inf"), float("nan"), True, None, [1]])
def test_a_target_that_no_loss_reaches_is_refused(value: object) -> None:
    with pytest.raises(InputError, match="target_loss"):
        parse_job({"command": COMMAND, "target_loss": value}, folder=Path())


def test_a_flag_states_the_target(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert cotenant("submit", "--target-loss", "0.5", "--time-limit", "2h", "--", *COMMAND).code == 0
    (request,) = [item for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]
    assert request.spec.target_loss == 0.5


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x"])
def test_a_flag_that_states_no_target_is_refused(cotenant: CommandLine, scheduler: FakeScheduler, text: str) -> None:
    assert cotenant("submit", "--target-loss", text, "--steps", "5", "--", *COMMAND).code != 0
    assert not [item for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]


@pytest.mark.parametrize(
    ("end", "text", "steps"),
    [
        (
            {"steps_total": 12_300, "steps_lower": 9_800, "steps_upper": 15_000, "confidence": 0.9, "losses": 34,
             "reliable": True},
            "at loss 0.5, after 12,300 steps (9,800 to 15,000 at 90 %), fitted to 34 losses",
            "/~12300",
        ),
        (
            {"steps_total": 12_300, "steps_lower": 1, "steps_upper": 15_000, "confidence": 0.9, "losses": 8},
            "fitted to 8 losses; the curves disagree, so no policy plans with it",
            "/~12300",
        ),
        (
            {"unknown_reason": "3 of at least 8 losses were reported"},
            "after 20,000 steps at most; when is not foreseeable yet: 3 of at least 8 losses were reported",
            "/20000",
        ),
        ({"steps_total": 700, "reached": True}, "at loss 0.5, which was reached after 700 steps", "/~700"),
    ],
)  # fmt: skip
def test_the_pages_of_a_job_say_when_it_ends(
    cotenant: CommandLine, scheduler: FakeScheduler, end: dict[str, Any], text: str, steps: str
) -> None:
    job = scheduler.jobs["job-000002"]
    job.spec.target_loss, job.spec.steps_total = 0.5, 20_000
    job.training_end.CopyFrom(scheduling_pb2.TrainingEnd(**end))
    assert text in " ".join(cotenant("describe", "job-000002").out.split())
    assert steps in cotenant("ps").out


def test_of_a_job_that_has_ended_no_end_is_foreseen(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    job = scheduler.jobs["job-000002"]
    job.spec.target_loss, job.phase = 0.5, scheduling_pb2.JOB_PHASE_FINISHED
    job.training_end.unknown_reason = "3 of at least 8 losses were reported"
    assert "at least 8 losses" not in " ".join(cotenant("describe", "job-000002").out.split())


@pytest.mark.parametrize(
    ("target", "loss", "reached"),
    [("0.5", 0.5, True), ("0.5", 0.51, False), ("0.5", float("nan"), False), ("0.5", float("-inf"), False),
     ("", 0.0, False), ("0", 0.0, False)],
)  # fmt: skip
def test_a_script_learns_whether_it_may_end(
    monkeypatch: pytest.MonkeyPatch, target: str, loss: float, *, reached: bool
) -> None:
    monkeypatch.setenv("COTENANT_TARGET_LOSS", target)
    assert reached_target(loss) is reached
    assert (target_loss() is None) == (target in ("", "0"))
