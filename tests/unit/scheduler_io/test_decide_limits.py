"""Queues, nodes, device types, anti-affinity, the caller's own figures, and several policies in one call."""

from __future__ import annotations

import asyncio

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.planning.placement_limits import ROUNDS_MAX
from scheduler_service.errors import CallerError, InvalidRequestError
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.policy_registry import POLICIES
from tests.support.cases import for_each
from tests.support.random_snapshots import faults_of

GIB = 2**30


def cluster(*jobs: scheduling_pb2.SnapshotJob) -> scheduling_pb2.Snapshot:
    """Return nodes a and b (queue short; A10) and c (queue long; H100), two GPUs each."""
    made = scheduling_pb2.Snapshot(now_ms=1_000)
    for name, queue, device in (("a", "short", "A10"), ("b", "short", "A10"), ("c", "long", "H100")):
        node = made.nodes.add(node_id=name, schedulable=True, queues=[queue])
        for index in range(2):
            node.gpus.add(gpu_id=f"{name}{index}", device=device, memory_bytes=24 * GIB, healthy=True)
    for number, one in enumerate(jobs):
        made.pending.add(job=one, submitted_at_ms=number)
    return made


def job(job_id: str, **fields: object) -> scheduling_pb2.SnapshotJob:
    made = scheduling_pb2.SnapshotJob(
        job_id=job_id, gpus=1, global_batch_size=8, steps_total=100, share=resources_pb2.SHARE_MODE_SAFE
    )
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)
    return made


def ask(
    given: scheduling_pb2.Snapshot, policy: str = "fifo", compared: tuple[str, ...] = ()
) -> scheduling_pb2.DecideResponse:
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=given, compared_policies=compared)
    answer = asyncio.run(decide(request, predictor=None, seconds_left=60))
    assert faults_of(given, answer) == []
    return answer


def placed(answer: scheduling_pb2.DecideResponse) -> dict[str, str]:
    return {
        one.job_id: ",".join(part.gpu_id for part in one.start.assignments) or one.reason.code
        for one in answer.decisions
    }


@for_each("policy", sorted(POLICIES))
def test_under_every_policy_jobs_start_where_they_may_and_wait_where_they_may_not(policy: str) -> None:
    given = cluster(
        job("anywhere"),
        job("long", queue="long"),
        job("h100", allowed_devices=["H100"]),
        job("not-a", queue="short", excluded_node_ids=["a"]),
        job("b", allowed_node_ids=["b"]),
        job("b-too", allowed_node_ids=["b"]),
        job("nowhere", allowed_node_ids=["x"]),
        job("no-queue", queue="night"),
    )
    for row in given.pending:
        row.job.worker_demand.gpus = 1
    found = placed(ask(given, policy))
    allowed = {"long": "c", "h100": "c", "not-a": "b", "b": "b", "b-too": "b", "anywhere": "abc"}
    for name, gpu_id in found.items():
        if gpu_id.islower():
            assert gpu_id[0] in allowed[name], (name, gpu_id)
    assert found["nowhere"] == found["no-queue"] == "NO_ALLOWED_GPU"


def test_jobs_with_few_places_get_them_before_jobs_that_fit_elsewhere() -> None:
    given = cluster(*(job(f"any{number}") for number in range(4)), job("h1", queue="long"), job("h2", queue="long"))
    found = placed(ask(given))
    assert {found["h1"], found["h2"]} == {"c0", "c1"}
    assert all(found[f"any{number}"][0] in "ab" for number in range(4))


def test_jobs_of_an_anti_affinity_group_never_meet_on_a_node() -> None:
    given = cluster(*(job(f"j{number}", anti_affinity_group="db") for number in range(4)), job("other"))
    given.running.add(job=job("r", anti_affinity_group="db")).assignments.add(gpu_id="a0")
    found = placed(ask(given))
    assert sorted(found[f"j{number}"][0] for number in range(2)) == ["b", "c"]
    assert found["j2"] == found["j3"] == "NO_ALLOWED_GPU"
    assert found["other"].islower()


def test_a_member_of_the_group_on_a_gpu_that_takes_no_job_keeps_the_others_off_its_node() -> None:
    given = cluster(job("j", anti_affinity_group="db", queue="long"))
    given.running.add(job=job("r", anti_affinity_group="db")).assignments.add(gpu_id="c0")
    given.nodes[2].gpus[0].healthy = False
    assert placed(ask(given)) == {"j": "NO_ALLOWED_GPU"}


def test_what_one_round_gave_away_no_later_round_gives_again() -> None:
    given = cluster(
        job("one", queue="long", gpus=2), job("two", allowed_devices=["H100"]), job("three", allowed_node_ids=["c"])
    )
    starts = [gpus for gpus in placed(ask(given)).values() if gpus.islower()]
    held = ",".join(starts).split(",")
    assert len(held) == len(set(held)) == 2


def test_hosts_are_not_given_twice_by_two_rounds() -> None:
    given = cluster(job("one", queue="long", cpu_cores=3), job("two", allowed_node_ids=["c"], cpu_cores=3))
    given.nodes[2].cpu_cores = 4
    found = placed(ask(given))
    assert sorted(gpu_id.islower() for gpu_id in found.values()) == [False, True]


def test_more_different_limits_than_one_call_weighs_are_held_and_said() -> None:
    given = cluster(*(job(f"j{number}", excluded_node_ids=["a", f"x{number}"]) for number in range(ROUNDS_MAX + 3)))
    for number in range(ROUNDS_MAX + 3):
        given.nodes.add(node_id=f"x{number}", schedulable=True).gpus.add(
            gpu_id=f"x{number}", device="A10", memory_bytes=GIB, healthy=True
        )
    assert sum(reason == "TOO_MANY_LIMITS" for reason in placed(ask(given)).values()) == 3


def stating(job_id: str, **fields: object) -> scheduling_pb2.SnapshotJob:
    figures = {"stated_memory_bytes": 4 * GIB, "stated_utilization_ratio": 0.3, "stated_slowdown_ratio": 0.1}
    return job(job_id, **{**figures, **fields})


def test_jobs_share_on_the_figures_of_their_caller_without_graph_or_predictor() -> None:
    answer = ask(cluster(*(stating(name, queue="long") for name in "abc")), "horus")
    assert set(placed(answer).values()) == {"c0", "c1"}
    assert not answer.warnings
    assert {one.memory_reserved_bytes for one in answer.decisions} == {4 * GIB}


def test_a_start_says_what_to_reserve_and_a_job_of_which_nothing_is_known_gets_the_whole_gpu() -> None:
    limited, free = job("a", queue="long"), job("b")
    for one in (limited, free):
        answer = ask(cluster(one))
        assert [decision.memory_reserved_bytes for decision in answer.decisions] == [24 * GIB]


@pytest.mark.parametrize("figures", [{"stated_slowdown_ratio": 0.5}, {"stated_memory_bytes": 13 * GIB}])
def test_figures_that_forbid_it_let_nobody_share(figures: dict[str, object]) -> None:
    given = cluster(stating("a", **figures), stating("b", **figures), stating("c", **figures))
    for row in given.pending:
        row.job.queue = "long"
    gpus = placed(ask(given, "horus")).values()
    assert sum(gpu_id.islower() for gpu_id in gpus) == 2


@pytest.mark.parametrize(
    ("name", "value"), [("stated_memory_bytes", -1), ("stated_utilization_ratio", 1.5), ("stated_slowdown_ratio", -0.1)]
)
def test_absurd_figures_hold_their_own_job(name: str, value: float) -> None:
    answer = ask(cluster(job("bad", **{name: value}), job("good")))
    assert placed(answer)["bad"] == "INVALID_ROW"
    assert placed(answer)["good"].islower()


def test_several_policies_decide_on_one_snapshot_each_as_if_it_alone_were_asked() -> None:
    given = cluster(*(stating(name) for name in "abcdefgh"))
    answer = ask(given, "fifo", compared=("horus", "srtf"))
    assert [one.policy for one in answer.comparisons] == ["horus", "srtf"]
    for one in answer.comparisons:
        alone = ask(given, one.policy)
        assert list(one.decisions) == list(alone.decisions)
        assert one.effective_parameters == alone.effective_parameters
    with pytest.raises(CallerError, match="compared_policies: names 9 policies, at most 8"):
        ask(given, compared=("fifo",) * 9)
    with pytest.raises(CallerError, match="there is no policy 'magic'"):
        ask(given, compared=("magic",))


def test_who_waits_for_an_equal_job_that_starts_reads_its_name() -> None:
    alike = {"stated_memory_bytes": 4 * GIB, "stated_utilization_ratio": 0.9, "stated_slowdown_ratio": 0.5}
    given = cluster(*(job(name, max_slowdown_ratio=0.1, queue="long", **alike) for name in ("one", "two", "three")))
    del given.nodes[2].gpus[1]
    answer = ask(given, "horus")
    assert placed(answer) == {"one": "c0", "two": "SLOWDOWN_TOO_HIGH", "three": "SLOWDOWN_TOO_HIGH"}
    assert [[*one.reason.job_ids] for one in answer.decisions[1:]] == [["two", "one"], ["three", "one"]]
    assert answer.decisions[1].reason.message.startswith("Next to one, two would be slowed down by 50.0 %")


def test_a_question_without_a_snapshot_is_refused_and_an_empty_one_is_not() -> None:
    """An answer without decisions would look like a cluster in which nothing waits."""
    with pytest.raises(InvalidRequestError, match="snapshot: is missing"):
        asyncio.run(decide(scheduling_pb2.DecideRequest(policy="fifo"), predictor=None, seconds_left=None))
    empty = scheduling_pb2.DecideRequest(policy="fifo", snapshot=scheduling_pb2.Snapshot())
    for request in (empty, scheduling_pb2.DecideRequest(policy="fifo", validate_only=True)):
        assert not asyncio.run(decide(request, predictor=None, seconds_left=None)).decisions
