"""How a user asks for parameter servers, in the file or by flags, and reads what they print."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.cli.job_views import describe_job, job_rows
from cotenant.cli.replica_options import state_blocks
from cotenant.client_errors import InputError
from cotenant.graph_file import read_graph
from cotenant.graph_parameters import parameter_blocks
from cotenant.job_file import parse_job
from cotenant.parameter_assignment import BLOCKS_MAX
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.jobs.translate_jobs import job_request
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakeScheduler

COMMAND = ["python", "train.py"]
GRAPHS = Path(__file__).parents[3] / "examples" / "jobs" / "graphs"


def spec_of(**content: object) -> scheduling_pb2.JobSpec:
    return parse_job({"command": COMMAND, "steps": 5, "ranks": 2, **content}, folder=Path()).spec


@pytest.mark.parametrize(
    ("value", "expected"), [(1, (1, [])), ("3", (3, [])), ("1..3", (1, [1, 2, 3])), ("2 .. 2", (2, []))]
)
def test_servers_are_a_number_or_a_range(value: object, expected: tuple[int, list[int]]) -> None:
    servers = spec_of(servers=value).servers
    assert (servers.count, list(servers.allowed_counts)) == expected


@pytest.mark.parametrize("value", [0, -1, "none", "4..2", True, 1.5, "0..3", 2**40, "9" * 30, None, [1]])
def test_no_number_of_servers_is_guessed(value: object) -> None:
    with pytest.raises(InputError):
        spec_of(servers=value)


@pytest.mark.parametrize(
    "content",
    [
        {"server_command": "'open"},
        {"server_command": []},
        {"server_command": [["x"]]},
        {"server_cpu_cores": -1},
        {"server_cpu_cores": float("nan")},
        {"server_cpu_cores": "2"},
        {"server_host_memory": "much"},
        {"straggler_ratio": 1},
        {"straggler_ratio": float("inf")},
        {"straggler_ratio": True},
        {"straggler_window": "soon"},
    ],
)
def test_what_servers_need_and_what_is_too_slow_must_make_sense(content: dict[str, object]) -> None:
    with pytest.raises(InputError):
        spec_of(servers=1, **content)


def test_servers_without_ranks_or_their_needs_without_servers_are_refused_with_the_flag_to_add() -> None:
    with pytest.raises(InputError) as no_ranks:
        parse_job({"command": COMMAND, "servers": 1}, folder=Path())
    with pytest.raises(InputError) as no_servers:
        spec_of(server_cpu_cores=2)
    assert "--ranks N" in no_ranks.value.remedy
    assert "--servers N" in no_servers.value.remedy


def test_flags_ask_for_them_as_well(cotenant: CommandLine, scheduler: FakeScheduler) -> None:
    flags = (
        "--ranks",
        "2",
        "--servers",
        "1..2",
        "--server-command",
        "python serve.py --fast",
        "--server-cpu-cores",
        "2",
    )
    more = ("--server-host-memory", "1GiB", "--straggler-ratio", "2", "--straggler-window", "30s")
    assert cotenant("submit", "--name", "job", "--steps", "5", *flags, *more, "--", *COMMAND).code == 0
    (request,) = [item for item in scheduler.seen if isinstance(item, scheduling_pb2.SubmitJobRequest)]
    spec = request.spec
    assert list(spec.servers.command) == ["python", "serve.py", "--fast"]
    assert (spec.servers.cpu_cores, spec.servers.host_memory_bytes) == (2.0, 1 << 30)
    assert (spec.straggler_ratio, spec.straggler_window_ms) == (2.0, 30_000)


def test_policies_know_what_ranks_and_servers_ask_of_the_host_together() -> None:
    content = {"cpu_cores": 4, "host_memory": "10B", "server_cpu_cores": 1.5, "server_host_memory": "3B"}
    request = job_request("job", spec_of(servers="2..3", **content))
    assert (request.cpu_cores, request.host_memory_bytes) == (7.0, 16)
    assert (request.replicas.servers, request.replicas.allowed_servers) == (2, (2, 3))


def test_a_server_s_log_is_read_by_its_number_and_is_not_a_rank_s(
    cotenant: CommandLine, scheduler: FakeScheduler
) -> None:
    assert cotenant("logs", "job-000003", "--server", "1").code == 0
    assert cotenant("logs", "job-000003").code == 0
    found = [item for item in scheduler.seen if isinstance(item, scheduling_pb2.ReadJobLogRequest)]
    assert [(item.HasField("server"), item.server) for item in found] == [(True, 1), (False, 0)]
    refused = cotenant("logs", "job-000003", "--server", "0", "--rank", "0")
    assert (refused.code, "--rank or --server" in refused.err) == (2, True)


def test_describe_and_ps_show_them() -> None:
    spec = spec_of(servers="1..2", server_cpu_cores=2, server_command="python serve.py")
    job = scheduling_pb2.Job(job_id="job-1", spec=spec, servers=2, stragglers_replaced=1)
    job.assignments.add(gpu_id="a.0")
    shown = dict(describe_job(job, ()))
    assert shown["servers"] == "2 parameter servers, 2 CPU cores each: python serve.py"
    assert shown["ranks"] == "1 processes, one per GPU, 1 replaced because it was too slow"
    [row] = job_rows([job], wide=False, at_ms=0)
    assert row.cells[4] == "a.0 +2 servers"


def test_the_blocks_of_a_graph_are_its_parameters_without_weights_or_statistics() -> None:
    assert parameter_blocks(read_graph(GRAPHS / "cnn.onnx")) == {
        "features.0.weight": 200, "features.0.bias": 8, "features.3.weight": 4_800, "features.3.bias": 24,
        "head.0.weight": 112_896, "head.0.bias": 96, "head.2.weight": 960, "head.2.bias": 10,
    }  # fmt: skip
    assert not [name for name in parameter_blocks(read_graph(GRAPHS / "resnet.onnx")) if "running" in name]


def test_servers_learn_the_blocks_of_the_job_s_graph_where_they_are_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, spec, alone = read_graph(GRAPHS / "cnn.onnx"), spec_of(servers=1), spec_of()
    state_blocks(spec, graph)
    state_blocks(alone, graph)
    assert (len(spec.servers.blocks), alone.HasField("servers")) == (8, False)
    monkeypatch.setattr(
        "cotenant.cli.replica_options.parameter_blocks", lambda _: {f"{one}": 2 for one in range(BLOCKS_MAX + 1)}
    )
    many = spec_of(servers=1)
    state_blocks(many, graph)
    assert not many.servers.blocks
