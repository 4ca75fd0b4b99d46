"""What a node says it runs, compared with what jobs ask for."""

from __future__ import annotations

from typing import Any

import pytest

from cotenant.v1 import node_agent_pb2
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.adapters.agents.launch_rules import LaunchRules, gpus_together, launch_rules, node_obstacles
from scheduler_service.adapters.command_performer import CommandPerformer
from scheduler_service.adapters.predictor.predictor_client import PredictorClient
from scheduler_service.core.commands import LaunchJob
from scheduler_service.core.events import Event, LaunchRefused
from scheduler_service.core.records import GANG_TRANSFERS
from tests.support.cases import for_each
from tests.support.scheduler_process import job_spec
from tests.support.scheduling import gpu, node

LISTED = {
    "executables": ["/venv/bin/python3.11", "/venv/bin/python", "/srv/train/run.sh"],
    "directories": ["/srv/train"],
    "environment_patterns": ["WANDB_*", "SEED"],
}


def rules_of(**fields: Any) -> LaunchRules:
    hello = node_agent_pb2.Hello(launch_rules=node_agent_pb2.LaunchRules(**fields))
    found = launch_rules(hello)
    assert found is not None
    return found


def findings(rules: LaunchRules | None, **fields: Any) -> list[str]:
    machine = node("n", [gpu("n.0"), gpu("n.1"), gpu("n.2", device="other")])
    return [one.finding for one in node_obstacles(machine, rules, job_spec(**fields))]


@for_each(
    ("command", "folder"),
    [
        ("python", ""),
        ("/venv/bin/python", ""),
        ("/venv/bin/../bin/python3.11", ""),
        ("./run.sh", "/srv/train"),
        ("../run.sh", "/srv/train/sub"),
        ("run.sh", ""),
    ],
)
def test_a_listed_program_runs_under_every_name_that_the_node_reported(command: str, folder: str) -> None:
    assert findings(rules_of(**LISTED), command=[command], working_directory=folder) == []


@pytest.mark.parametrize(
    ("enforcements", "expected"), [(("watchdog",), ["has an agent that starts no ranks"]), (("rank_processes",), [])]
)
def test_a_job_with_ranks_runs_where_the_agent_starts_them(enforcements: tuple[str, ...], expected: list[str]) -> None:
    """An older agent would start one process, which waits for the others forever."""
    machine = node("n", 2, enforcements=enforcements)
    assert [one.finding for one in node_obstacles(machine, None, job_spec(gpus=2, ranks=2))] == expected
    assert not list(node_obstacles(node("n", 2), None, job_spec(gpus=2)))


def test_a_job_on_several_gpus_is_refused_where_there_are_only_slices_of_them() -> None:
    cut = node("n", [gpu("MIG-1"), gpu("MIG-2"), gpu("MIG-3")])
    (found,) = node_obstacles(cut, None, job_spec(gpus=2))
    assert found.finding == "has 1 GPU of one kind, not 2, since of 3 slices of GPUs (MIG) a process can use one"
    assert not list(node_obstacles(cut, None, job_spec()))
    assert not list(node_obstacles(cut, None, job_spec(allowed_gpus=[1, 2])))
    named = node("n", [gpu(f"0/{place}", device="NVIDIA-A100-SXM4-40GB-MIG-1g.5gb") for place in range(2)])
    assert "slices" in next(node_obstacles(named, None, job_spec(gpus=2))).finding
    mixed = node("n", [gpu("MIG-1"), gpu("MIG-2"), gpu("GPU-1", device="whole"), gpu("GPU-2", device="whole")])
    assert not list(node_obstacles(mixed, None, job_spec(gpus=2)))


@pytest.mark.parametrize(("fields", "flag"), [({"gpus": 3}, "--gpus"), ({"gpus": 3, "ranks": 3}, "--ranks")])
def test_a_job_for_more_gpus_than_one_node_has_is_refused_with_the_flag_that_asked(
    fields: dict[str, int], flag: str
) -> None:
    [obstacle] = node_obstacles(node("n", 2, enforcements=("rank_processes",)), None, job_spec(**fields))
    assert f"fewer {flag}," in obstacle.remedy
    assert "on one node" in obstacle.remedy


def test_a_gang_that_may_span_nodes_needs_shared_checkpoints_and_an_address() -> None:
    spec = job_spec(gpus=3, ranks=3, across_nodes=True)
    facts = {"enforcements": ("rank_processes",)}
    plain, able = node("n", 2, **facts), node("n", 2, rendezvous_address="10.0.0.1", storage_id="s", **facts)
    found = list(node_obstacles(plain, None, spec))
    assert [one.finding for one in found] == [
        "says no address for ranks on other nodes",
        "neither shares checkpoints with other nodes nor sends them",
    ]
    assert "--shared-checkpoints" in found[1].remedy
    assert list(node_obstacles(able, None, spec)) == []
    sending = node("n", 2, rendezvous_address="10.0.0.1", enforcements=("rank_processes", GANG_TRANSFERS))
    assert list(node_obstacles(sending, None, spec)) == []


@pytest.mark.parametrize(("storages", "expected"), [("aa", 4), ("ab", 2), ("", 0)])
def test_gpus_count_together_where_their_nodes_share_checkpoints(storages: str, expected: int) -> None:
    machines = [node(f"n{number}", 2, storage_id=one) for number, one in enumerate(storages)]
    assert gpus_together(machines) == expected
    sending = [node(f"m{number}", 2, enforcements=(GANG_TRANSFERS,)) for number in range(3)]
    assert gpus_together([*machines, *sending]) == 6


@pytest.mark.parametrize("command", ["bash", "/bin/bash", "./run.sh", "/venv/bin/python/../sh"])
def test_another_program_does_not_and_the_listed_ones_are_named(command: str) -> None:
    [finding] = findings(rules_of(**LISTED), command=[command])
    assert "/venv/bin/python" in finding
    assert command in finding


def test_variables_that_the_node_does_not_take_are_named_without_their_values() -> None:
    [finding] = findings(rules_of(**LISTED), environment={"WANDB_MODE": "x", "SEED": "1", "LD_PRELOAD": "secret"})
    assert "LD_PRELOAD" in finding
    assert "secret" not in finding
    assert "SEED" not in finding


def test_a_node_of_its_owner_runs_everything_and_still_needs_the_gpus_of_one_kind() -> None:
    owners = rules_of(any_command=True)
    assert findings(owners, command=["./x"], environment={"FOO": "1"}, gpus=2) == []
    [finding] = findings(owners, command=["./x"], gpus=3)
    assert finding == "has 2 GPUs of one kind, not 3"
    assert findings(owners, command=["./x"], gpus=8, allowed_gpus=[2, 8]) == []


def test_a_node_that_does_not_say_what_it_runs_is_assumed_to_run_it() -> None:
    assert launch_rules(node_agent_pb2.Hello()) is None
    assert findings(None, command=["anything"], environment={"FOO": "1"}) == []


def test_a_directory_is_compared_by_its_name_as_a_whole() -> None:
    rules = rules_of(**LISTED)
    assert rules.lists_directory("/srv/train")
    assert rules.lists_directory("/srv/train/../train/sub")
    assert rules.lists_directory("")
    assert not rules.lists_directory("/srv/training")
    assert not rules.lists_directory("/srv/train/../other")


@pytest.mark.parametrize(
    "fields",
    [
        {"executables": ["/x"] * 2_001},
        {"directories": ["/" + "x" * 5_000]},
        {"environment_patterns": ["x"] * 201},
        {"environment_patterns": ["*" * 129]},
    ],
)
def test_a_node_that_says_too_much_is_taken_as_one_that_does_not_say(fields: dict[str, Any]) -> None:
    assert launch_rules(node_agent_pb2.Hello(launch_rules=node_agent_pb2.LaunchRules(**fields))) is None


def test_no_pattern_keeps_a_submission_waiting() -> None:
    rules = rules_of(environment_patterns=["*a" * 60 + "b[", "[!", "[z-a]", "(((", "?" * 100])
    assert findings(rules, command=["x"], environment={"a" * 127: "1"})


@pytest.mark.parametrize(("ranks", "starts_ranks", "is_sent"), [(2, True, True), (2, False, False), (0, False, True)])
def test_an_agent_that_knows_no_ranks_is_sent_no_job_with_ranks(ranks: int, starts_ranks: bool, is_sent: bool) -> None:
    """A policy knows nothing of agents' versions, and the job would run as one process without a word."""
    sessions, told = AgentSessions(), list[Event]()
    session = sessions.open("n", now_ms=0, starts_ranks=starts_ranks)
    performer = CommandPerformer(
        sessions=sessions, predictor=PredictorClient(None, deadline_s=1), launch_of=lambda _: {}, deliver=told.append
    )
    order = LaunchJob(
        node_id="n", job_id="j", attempt=1, fence=7, assignments=(), micro_batch_size=1, accumulation_steps=1,
        granted_fences=(), memory_limit_bytes=0, steps_done=0, launch={"ranks": ranks} if ranks else {},
    )  # fmt: skip
    performer.perform(order)
    assert (session.outbound.qsize() == 1) is is_sent
    assert [(one.code, one.fence) for one in told if isinstance(one, LaunchRefused)] == (
        [] if is_sent else [("RANKS_NOT_SUPPORTED", 7)]
    )


@for_each(
    ("wanted", "expected"),
    [
        ((), []),
        (("other",), []),
        (("h200", "other"), []),
        (("h200", "l4"), ["has other, standin, not h200, l4"]),
    ],
)
def test_a_node_without_the_devices_that_a_job_names_cannot_run_it(
    wanted: tuple[str, ...], expected: list[str]
) -> None:
    assert findings(None, allowed_devices=wanted) == expected
