"""Jobs with parameter servers at the door: what is refused, which agents start them, whose log is whose."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2, scheduling_pb2
from scheduler_service.adapters.agents.agent_messages import launch_message, progress
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.launch_rules import LaunchRules, launch_rules, node_obstacles
from scheduler_service.adapters.command_performer import CommandPerformer
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.core.commands import LaunchJob
from scheduler_service.core.events import Event, LaunchRefused
from scheduler_service.core.jobs.job_parts import Submission
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.grpc_api.jobs.log_requests import rank_violations
from scheduler_service.grpc_api.jobs.translate_jobs import job_request
from scheduler_service.grpc_api.validation import spec_violations
from tests.support.scheduling import node


def spec_of(servers: dict[str, Any] | None = None, **fields: Any) -> scheduling_pb2.JobSpec:
    group = scheduling_pb2.ParameterServers(**{"count": 1, **(servers or {})})
    return scheduling_pb2.JobSpec(
        **{"command": ["python", "train.py"], "gpus": 2, "ranks": 2, "servers": group, **fields}
    )


def fields_of(spec: scheduling_pb2.JobSpec) -> set[str]:
    return {one.field for one in spec_violations(spec)}


def test_servers_beside_ranks_on_one_node_are_accepted() -> None:
    spec = spec_of({"count": 2, "allowed_counts": [1, 2], "command": ["python"], "cpu_cores": 1, "blocks": {"w": 5}})
    assert fields_of(spec) == set()


@pytest.mark.parametrize(
    ("servers", "field"),
    [
        ({"count": 0}, "count"),
        ({"count": -3}, "count"),
        ({"count": 65}, "count"),
        ({"allowed_counts": [2, 3]}, "allowed_counts"),
        ({"allowed_counts": [1, 0]}, "allowed_counts"),
        ({"allowed_counts": [1] * 65}, "allowed_counts"),
        ({"command": [""]}, "command"),
        ({"command": ["a\0b"]}, "command"),
        ({"command": ["x"] * 1_001}, "command"),
        ({"command": ["x" * 200_000]}, "command"),
        ({"cpu_cores": float("nan")}, "cpu_cores"),
        ({"cpu_cores": -1}, "cpu_cores"),
        ({"host_memory_bytes": -1}, "host_memory_bytes"),
        ({"blocks": {"w": 0}}, "blocks"),
        ({"blocks": {"w": 1 << 60}}, "blocks"),
        ({"blocks": {str(one): 1 for one in range(4_097)}}, "blocks"),
        ({"blocks": {"w" * 200_000: 1}}, "blocks"),
    ],
)
def test_what_no_servers_can_be_is_refused(servers: dict[str, Any], field: str) -> None:
    assert fields_of(spec_of(servers)) == {f"spec.servers.{field}"}


@pytest.mark.parametrize(("fields", "found"), [({"ranks": 0}, {"spec.servers"}), ({"across_nodes": True}, set())])
def test_servers_need_ranks_on_one_node_or_several(fields: dict[str, Any], found: set[str]) -> None:
    assert fields_of(spec_of(**fields)) == found


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"straggler_ratio": 0.5}, "straggler_ratio"),
        ({"straggler_ratio": 1.0}, "straggler_ratio"),
        ({"straggler_ratio": -2.0}, "straggler_ratio"),
        ({"straggler_ratio": float("nan")}, "straggler_ratio"),
        ({"straggler_ratio": 1_000.0}, "straggler_ratio"),
        ({"straggler_ratio": 2.0, "gpus": 1, "ranks": 1}, "straggler_ratio"),
        ({"straggler_window_ms": -1}, "straggler_window_ms"),
        ({"straggler_window_ms": 1 << 50}, "straggler_window_ms"),
        ({"straggler_ratio": 2.0, "straggler_window_ms": 5_000}, ""),
    ],
)
def test_a_rank_is_too_slow_beside_others_only_and_by_a_sane_factor(fields: dict[str, Any], field: str) -> None:
    assert fields_of(spec_of(**fields)) == ({f"spec.{field}"} if field else set())


def test_one_process_has_no_ranks_that_could_be_too_slow() -> None:
    spec = scheduling_pb2.JobSpec(command=["python"], gpus=2, straggler_ratio=2.0)
    assert fields_of(spec) == {"spec.straggler_ratio"}


@pytest.mark.parametrize(("enforcement", "is_able"), [("parameter_servers", True), ("shim_lease", False)])
def test_a_job_with_servers_is_accepted_where_an_agent_starts_them(enforcement: str, is_able: bool) -> None:
    """An older agent would start the ranks alone, and they would wait for their servers for ever."""
    machine = node("n", 2, enforcements=("rank_processes", enforcement))
    found = [one.finding for one in node_obstacles(machine, None, spec_of())]
    assert found == ([] if is_able else ["has an agent that starts no parameter servers"])


@pytest.mark.parametrize("is_able", [True, False])
def test_a_gang_across_nodes_has_servers_where_the_agents_start_a_part_of_them(is_able: bool) -> None:
    words = ("rank_processes", "parameter_servers", *(["parameter_servers_across_nodes"] if is_able else []))
    machine = node("n", 1, enforcements=words, rendezvous_address="n.example", storage_id="shared")
    found = [one.finding for one in node_obstacles(machine, None, spec_of(across_nodes=True))]
    assert found == (
        [] if is_able else ["has an agent that starts parameter servers only where all ranks are on its node"]
    )


def test_the_command_of_the_servers_must_be_one_that_the_node_runs() -> None:
    hello = node_agent_pb2.Hello(launch_rules=node_agent_pb2.LaunchRules(executables=["/usr/bin/python"]))
    rules = launch_rules(hello)
    assert isinstance(rules, LaunchRules)
    [obstacle] = rules.obstacles(spec_of({"command": ["/opt/serve"]}))
    assert "'/opt/serve'" in obstacle.finding
    assert not list(rules.obstacles(spec_of({"command": ["python", "serve.py"]})))


@pytest.mark.parametrize("starts_servers", [True, False])
def test_an_agent_that_knows_no_servers_is_sent_no_job_with_some(starts_servers: bool) -> None:
    sessions, told = AgentSessions(), list[Event]()
    session = sessions.open("n", now_ms=0, starts_servers=starts_servers)
    performer = CommandPerformer(
        sessions=sessions, predictor=PredictorClient(None, deadline_s=1), launch_of=lambda _: {}, deliver=told.append
    )
    performer.perform(order(servers=2))
    assert (session.outbound.qsize() == 1) is starts_servers
    refusals = [one.message for one in told if isinstance(one, LaunchRefused)]
    assert ["without --servers" in one for one in refusals] == ([] if starts_servers else [True])


def order(**fields: Any) -> LaunchJob:
    return LaunchJob(
        node_id="n", job_id="j", attempt=1, fence=7, assignments=(), micro_batch_size=1, accumulation_steps=1,
        granted_fences=(), memory_limit_bytes=0, steps_done=0, launch={"ranks": 2}, **fields,
    )  # fmt: skip


def test_an_order_says_how_many_servers_the_attempt_has() -> None:
    assert launch_message(order(servers=3)).launch_job.servers == 3


@pytest.mark.parametrize(
    ("server", "servers", "is_right"),
    [
        (0, {"count": 1}, True),
        (1, {"count": 1}, False),
        (1, {"allowed_counts": [1, 2]}, True),
        (-1, {"count": 1}, False),
    ],
)
def test_only_servers_that_a_job_can_have_had_have_logs(server: int, servers: dict[str, Any], is_right: bool) -> None:
    spec = spec_of(servers)
    job = JobRecord(request=job_request("job-1", spec), submission=Submission(launch={"ranks": 2}))
    found = list(rank_violations(scheduling_pb2.ReadJobLogRequest(job_id="job-1", server=server), job))
    assert not found if is_right else "has servers 0 to 0" in found[0].description


def test_a_job_without_servers_has_no_log_of_one() -> None:
    job = JobRecord(
        request=job_request("job-1", scheduling_pb2.JobSpec(gpus=2, ranks=2)),
        submission=Submission(launch={"ranks": 2}),
    )
    [found] = rank_violations(scheduling_pb2.ReadJobLogRequest(job_id="job-1", server=0), job)
    assert "no parameter servers" in found.description


def test_times_of_ranks_that_cannot_be_are_left_out() -> None:
    times = [(0, 5.0), (-1, 5.0), (1, float("nan")), (2, float("inf")), (3, -1.0), (4, 0.0)]
    message = node_agent_pb2.AttemptObservation(
        rank_step_times=[node_agent_pb2.RankStepTime(rank=rank, own_step_ms=own_ms) for rank, own_ms in times]
    )
    assert progress(message).rank_step_ms == ((0, 5.0),)
