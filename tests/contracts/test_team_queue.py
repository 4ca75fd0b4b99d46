"""The queue from the command line to the event log and back, over a real channel."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from cotenant.cli.main import run
from cotenant.client import ChannelOptions, SchedulerClient, open_channel
from cotenant.client_errors import NotFoundError, RejectedError, ServiceError
from cotenant.v1 import scheduling_pb2
from tests.support.live_scheduler import running_scheduler

Cli = Callable[..., str]
SUBMIT = ("submit", "--no-capture")
COMMAND = ("--", "python", "t.py")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("scheduler")
    tenants = folder / "tenants.toml"
    tenants.write_text("[tenants.small]\ngpus = 1\n")
    with running_scheduler(folder / "state", tenants=tenants) as found:
        yield found


@pytest.fixture
def client(address: str) -> Iterator[SchedulerClient]:
    with open_channel(ChannelOptions(address=address)) as channel:
        yield SchedulerClient(channel, address=address, timeout_s=60)


@pytest.fixture
def cotenant(address: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)

    def call(*words: str, code: int = 0) -> str:
        verb, *rest = words
        place = ["nodes", rest[0]] if verb == "nodes" and rest else [verb]
        others = rest[1:] if len(place) == 2 else rest
        found = run([*place, "--scheduler", address, *others])
        shown = capsys.readouterr()
        assert found == code, shown.err
        return shown.out if code == 0 else shown.err

    return call


def test_a_job_is_held_altered_released_cancelled_and_handed_in_again(cotenant: Cli, client: SchedulerClient) -> None:
    job_id = cotenant(*SUBMIT, "--hold", "--priority", "high", "-o", "name", *COMMAND).strip()
    assert client.get_job(job_id).reason.code == "HELD"
    cotenant("alter", job_id, "--priority", "-7", "--share", "never", "--time-limit", "90m")
    cotenant("release", job_id)
    spec = client.get_job(job_id).spec
    assert (spec.priority, spec.time_limit_ms, client.get_job(job_id).reason.code) == (-7, 5_400_000, "NO_NODE")
    cotenant("hold", job_id)
    cotenant("cancel", job_id)
    again = cotenant("retry", job_id, "-o", "name").strip()
    assert client.get_job(again).spec.retry_of == job_id
    assert "retry of  " in cotenant("describe", again)
    assert "-7" in cotenant("ps", "-o", "wide")


def test_an_array_is_one_line_to_submit_and_one_to_cancel(cotenant: Cli, client: SchedulerClient) -> None:
    array_id = cotenant(*SUBMIT, "--array", "1-20%4", "-o", "name", *COMMAND, "--seed", "{index}").strip()
    tasks = [job for job in client.list_jobs() if job.spec.array_id == array_id]
    assert sorted(job.spec.array_index for job in tasks) == list(range(1, 21))
    assert {list(job.spec.command)[-1] for job in tasks} == {str(index) for index in range(1, 21)}
    assert sum(job.reason.code == "ARRAY_LIMIT" for job in tasks) == 16
    cotenant("cancel", array_id)
    assert {client.get_job(job.job_id).phase for job in tasks} == {scheduling_pb2.JOB_PHASE_CANCELLED}


def test_the_tasks_of_an_array_are_held_altered_released_and_handed_in_again_by_its_name(
    cotenant: Cli, client: SchedulerClient
) -> None:
    array_id = cotenant(*SUBMIT, "--array", "1-3", "-o", "name", *COMMAND).strip()

    def tasks(*phases: str) -> list[scheduling_pb2.Job]:
        wanted = [scheduling_pb2.JobPhase.Value(f"JOB_PHASE_{phase}") for phase in phases]
        return [job for job in client.list_jobs(phases=wanted) if job.spec.array_id == array_id]

    cotenant("hold", array_id)
    assert {job.reason.code for job in tasks("PENDING")} == {"HELD"}
    first = min(tasks("PENDING"), key=lambda job: job.spec.array_index).job_id
    cotenant("alter", array_id, first, "--priority", "low")
    cotenant("release", array_id)
    assert {(job.reason.code, job.spec.priority) for job in tasks("PENDING")} == {("NO_NODE", -100)}
    assert "no task of" in cotenant("retry", array_id, code=2)
    cotenant("cancel", array_id)
    assert "is pending" in cotenant("hold", array_id, code=2)
    again = cotenant("retry", array_id, "-o", "name").split()
    assert sorted(job.job_id for job in tasks("PENDING")) == sorted(again)
    assert "no task of" in cotenant("retry", array_id, code=2), "each was handed in again already"
    assert "array-999" in cotenant("hold", "array-999", code=3)
    cotenant("cancel", array_id)


def test_a_sweep_is_one_job_per_row(cotenant: Cli, client: SchedulerClient, tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("lr,depth\n0.1,2\n0.01,4\n")
    (tmp_path / "runs.json").write_text(json.dumps([{"lr": 0.1, "depth": 2}, {"lr": 0.01, "depth": 4}]))
    found = []
    for name in ("runs.csv", "runs.json"):
        command = (*COMMAND, "--lr={lr}", "{depth}")
        array_id = cotenant(*SUBMIT, "--sweep", name, "--array", "%1", "-o", "name", *command).strip()
        tasks = [job.spec for job in client.list_jobs() if job.spec.array_id == array_id]
        found.append([list(spec.command)[2:] for spec in sorted(tasks, key=lambda spec: spec.array_index)])
        assert {spec.array_running_max for spec in tasks} == {1}
    assert found == [[["--lr=0.1", "2"], ["--lr=0.01", "4"]]] * 2


def test_a_repeated_array_is_the_same_array(client: SchedulerClient) -> None:
    spec = scheduling_pb2.JobSpec(name="t", command=["python", "t.py"], working_directory="/tmp")
    tasks = [scheduling_pb2.ArrayTask(index=index) for index in range(3)]
    first = client.submit_array(spec, tasks, request_id="array-request")
    again = client.submit_array(spec, tasks, request_id="array-request")
    assert (again.array_id, list(again.job_ids)) == (first.array_id, list(first.job_ids))
    with pytest.raises(ServiceError, match="array-request"):
        client.submit_array(spec, tasks[:2], request_id="array-request")
    with pytest.raises(RejectedError, match="each once"):
        client.submit_array(spec, [tasks[0], tasks[0]])
    with pytest.raises(NotFoundError):
        client.cancel_array("array-999999")


def test_a_job_waits_for_others_by_name_and_reads_so(cotenant: Cli, client: SchedulerClient) -> None:
    parent = cotenant(*SUBMIT, "--name", "first-of-all", "-o", "name", *COMMAND).strip()
    child = cotenant(*SUBMIT, "--after", "first-of-all", "-o", "name", *COMMAND).strip()
    assert list(client.get_job(child).spec.after_job_ids) == [parent]
    assert client.get_job(child).reason.code == "AFTER"
    assert f"{parent} with success" in cotenant("describe", child)
    cotenant("cancel", parent)
    assert client.get_job(child).reason.code == "PARENT_FAILED"


def test_what_cannot_be_is_refused_with_a_remedy(cotenant: Cli) -> None:
    for words, finding in (
        (("--priority", "urgent"), "low, normal, high"),
        (("--time-limit", "2"), "45s, 90m, 2h"),
        (("--time-limit", "0s"), "45s, 90m, 2h"),
        (("--deadline", "2001-01-01"), "in the past"),
        (("--deadline", "soon"), "not an instant"),
        (("--gpus", "4..2"), "2..4"),
        (("--gpus", "two"), "2..4"),
        (("--array", "1-5,3"), "an index twice"),
        (("--array", "1-2000"), "1 to 1000 indexes"),
        (("--array", "1-5%0"), "tasks at once"),
        (("--array", "%4"), "an array of 0 tasks"),
        (("--array", "-1"), "not an array"),
        (("--device", ","), "empty name"),
    ):
        assert finding in cotenant(*SUBMIT, *words, *COMMAND, code=2)


def test_nodes_are_cordoned_drained_and_uncordoned_by_name(cotenant: Cli) -> None:
    for verb in ("cordon", "drain", "uncordon"):
        assert "nowhere" in cotenant("nodes", verb, "nowhere", code=3)


def test_what_was_asked_of_the_queue_survives_a_restart(tmp_path: Path) -> None:
    spec = scheduling_pb2.JobSpec(name="t", command=["python", "t.py"], working_directory="/tmp", held=True)
    shown: list[list[tuple[str, int, str]]] = []
    for _ in range(2):
        with running_scheduler(tmp_path) as address, grpc.insecure_channel(address) as channel:
            client = SchedulerClient(channel, address=address, timeout_s=60)
            if not shown:
                tasks = [scheduling_pb2.ArrayTask(index=index) for index in range(5)]
                client.submit_array(spec, tasks)
                client.alter_job("job-2", priority=5)
            shown.append([(job.job_id, job.spec.priority, job.reason.code) for job in client.list_jobs()])
    assert shown[0] == shown[1]
    assert ("job-2", 5, "HELD") in shown[0]
