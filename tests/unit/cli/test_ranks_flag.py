"""How a user asks for one process per GPU, in the file or by a flag, and reads what each of them printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.cli.job_views import describe_job
from cotenant.client_errors import InputError
from cotenant.job_file import parse_job
from cotenant.v1 import scheduling_pb2
from tests.support.cases import for_each
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

COMMAND = ["python", "train.py"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [({}, (0, 0)), ({"ranks": 2}, (2, 2)), ({"ranks": 2, "gpus": 2}, (2, 2)), ({"gpus": 2}, (0, 2))],
)
def test_ranks_ask_for_as_many_gpus_and_gpus_for_no_ranks(
    content: dict[str, object], expected: tuple[int, int]
) -> None:
    spec = parse_job({"command": COMMAND, "steps": 5, **content}, folder=Path()).spec
    assert (spec.ranks, spec.gpus) == expected


@for_each("value", [0, -2, 2**40, "2", True, 1.5])
def test_no_number_of_processes_is_guessed(value: object) -> None:
    with pytest.raises(InputError, match="ranks"):
        parse_job({"command": COMMAND, "ranks": value}, folder=Path())


def test_a_flag_asks_for_them_as_well(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert cotenant("submit", "--name", "job", "--steps", "5", "--ranks", "2", "--", *COMMAND).code == 0
    (request,) = [item for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]
    assert (request.spec.ranks, request.spec.gpus) == (2, 2)


@pytest.mark.parametrize("flags", [(), ("--tail", "3")])
def test_the_log_of_a_rank_is_read_by_its_number(
    cotenant: CommandLine, scheduler: FakeScheduler, flags: tuple[str, ...]
) -> None:
    assert cotenant("logs", "job-000003", "--rank", "1", *flags).code == 0
    ranks = {item.rank for item in scheduler.seen if isinstance(item, scheduling_pb2.ReadJobLogRequest)}
    assert ranks == {1}


def test_a_gang_says_whether_it_may_span_nodes(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    assert cotenant("submit", "--name", "job", "--ranks", "2", "--across-nodes", "--", *COMMAND).code == 0
    assert cotenant("submit", "--name", "job", "--ranks", "2", "--", *COMMAND).code == 0
    found = [item.spec.across_nodes for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]
    assert found == [True, False]
    refused = cotenant("submit", "--gpus", "2", "--across-nodes", "--", *COMMAND)
    assert refused.code == 2
    assert "add --ranks N" in refused.err
    words = ("--", "torchrun", "train.py")
    assert cotenant("submit", "--name", "job", "--gpus", "2", "--across-nodes", *words).code == 0


def test_describe_names_every_node_of_a_gang() -> None:
    job = scheduling_pb2.Job(job_id="job-1", node_id="a", assignments=[scheduling_pb2.Assignment(gpu_id="a.0")])
    assert dict(describe_job(job, ()))["placed"] == "a.0 (rank 0) on a"
    job.node_ids.extend(("a", "b"))
    assert dict(describe_job(job, ()))["placed"] == "a.0 (rank 0) on a, b"
