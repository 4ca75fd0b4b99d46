"""One bad row, one job without a graph, one unknown GPU: each costs what it describes and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import pytest

from cotenant.v1 import prediction_pb2, resources_pb2, scheduling_pb2
from scheduler_service.adapters.predictor.predictor_client import PredictorClient, open_channel
from scheduler_service.core.reasons.reason_texts import REASON_TEXTS
from scheduler_service.errors import CallerError
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.policy_registry import POLICIES
from tests.support.cases import for_each
from tests.support.fake_predictor import FakePredictor
from tests.support.fake_services import refuse
from tests.support.random_snapshots import faults_of

GIB = 2**30
KNOWN, UNKNOWN = "NVIDIA A10", "NVIDIA X990"
GOOD, BAD = "ab" * 32, "ef" * 32
INVALID_ARGUMENT, NOT_FOUND = 3, 5


@dataclass
class PickyPredictor(FakePredictor):
    """Knows one type of GPU and refuses one graph, as the real predictor does."""

    bad_graphs: frozenset[str] = frozenset()
    silent_about: frozenset[str] = frozenset()

    def PredictJob(  # noqa: N802
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictJobResponse:
        self._refuse_graphs([request.graph_sha256], context)
        answer = super().PredictJob(request, context)
        answer.device, answer.device_is_generic = request.device, request.device != KNOWN
        return answer

    def PredictPairs(  # noqa: N802
        self, request: prediction_pb2.PredictPairsRequest, context: grpc.ServicerContext
    ) -> prediction_pb2.PredictPairsResponse:
        self._refuse_graphs([job.graph_sha256 for job in request.jobs], context)
        return super().PredictPairs(request, context)

    def _refuse_graphs(self, graphs: list[str], context: grpc.ServicerContext) -> None:
        if self.silent_about & set(graphs):
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "not in time")
        if self.bad_graphs & set(graphs):
            refuse(context, NOT_FOUND, "no graph is stored under 'efef'", reason="UNKNOWN_GRAPH")


@pytest.fixture
def predictor() -> Iterator[PickyPredictor]:
    made = PickyPredictor(bad_graphs=frozenset({BAD}))
    with made:
        yield made


def snapshot(*jobs: scheduling_pb2.SnapshotJob, gpus: tuple[str, ...] = (KNOWN,)) -> scheduling_pb2.Snapshot:
    made = scheduling_pb2.Snapshot(now_ms=1_000)
    node = made.nodes.add(node_id="n", schedulable=True, cpu_cores=64, host_memory_bytes=256 * GIB)
    for number, device in enumerate(gpus):
        node.gpus.add(gpu_id=f"g{number}", device=device, memory_bytes=24 * GIB, healthy=True)
    for entry in jobs:
        made.pending.add(job=entry)
    return made


def job(job_id: str, *, graph: str = "", **changes: object) -> scheduling_pb2.SnapshotJob:
    made = scheduling_pb2.SnapshotJob(
        job_id=job_id,
        job_key=f"key-{job_id}" if graph else "",
        gpus=1,
        global_batch_size=8,
        steps_total=1_000,
        share=resources_pb2.SHARE_MODE_ANY,
        max_slowdown_ratio=5.0,
        graph_sha256=graph,
    )
    if graph:
        made.settings.global_batch_size = 8
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def ask(
    given: scheduling_pb2.Snapshot,
    predictor: FakePredictor | None = None,
    *,
    policy: str = "horus",
    explain: bool = False,
) -> scheduling_pb2.DecideResponse:
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=given, explain=explain)

    async def main() -> scheduling_pb2.DecideResponse:
        if predictor is None:
            return await decide(request, predictor=None, seconds_left=60)
        client = PredictorClient(open_channel(predictor.address), deadline_s=20)
        try:
            return await decide(request, predictor=client, seconds_left=60)
        finally:
            await client.close()

    answer = asyncio.run(main())
    assert faults_of(given, answer) == []
    return answer


def placed(answer: scheduling_pb2.DecideResponse) -> dict[str, str]:
    return {
        one.job_id: one.start.assignments[0].gpu_id if one.WhichOneof("action") == "start" else one.reason.code
        for one in answer.decisions
    }


def codes(answer: scheduling_pb2.DecideResponse) -> list[str]:
    return [warning.code for warning in answer.warnings]


def test_an_unknown_gpu_type_costs_its_own_sharing_only(predictor: PickyPredictor) -> None:
    jobs = [job(name, graph=GOOD) for name in "abcd"]
    answer = ask(snapshot(*jobs, gpus=(KNOWN, UNKNOWN)), predictor)
    gpus = list(placed(answer).values())
    assert sorted(gpus).count("g0") > 1
    assert gpus.count("g1") == 1
    assert codes(answer) == ["UNKNOWN_DEVICE"]
    assert UNKNOWN in answer.warnings[0].message
    assert answer.model_version == "fake-1"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_under_no_policy_jobs_share_an_unknown_gpu_type(predictor: PickyPredictor, policy: str) -> None:
    answer = ask(snapshot(*(job(name, graph=GOOD) for name in "abc"), gpus=(UNKNOWN,)), predictor, policy=policy)
    gpus = list(placed(answer).values())
    assert gpus.count("g0") <= 1
    if policy == "horus":
        assert gpus.count("g0") == 1


def test_predictions_of_the_snapshot_itself_let_jobs_share_an_unknown_gpu_type() -> None:
    given = snapshot(job("a", graph=GOOD), job("b", graph=GOOD), gpus=(UNKNOWN,))
    for key in ("key-a", "key-b"):
        known = given.job_predictions.add(job_key=key, device=UNKNOWN, level=3, in_domain=True, utilization_ratio=0.1)
        known.micro_batches.add(micro_batch_size=8, memory_bytes=GIB)
        for other in ("key-a", "key-b"):
            given.pair_predictions.add(victim_job_key=key, other_job_key=other, device=UNKNOWN, level=3, in_domain=True)
    answer = ask(given)
    assert placed(answer) == {"a": "g0", "b": "g0"}
    assert not answer.warnings


def test_a_short_name_reaches_the_predictor_with_its_memory(predictor: PickyPredictor) -> None:
    given = snapshot(job("a", graph=GOOD), job("b", graph=GOOD))
    ask(given, predictor)
    assert {question.device_memory_bytes for question in predictor.job_questions} == {24 * GIB}
    assert {question.device_memory_bytes for question in predictor.pair_questions} == {24 * GIB}


def test_a_job_with_a_key_and_no_graph_runs_alone_and_the_others_share(predictor: PickyPredictor) -> None:
    given = snapshot(job("a", job_key="mine"), job("b", graph=GOOD), job("c", graph=GOOD), gpus=(KNOWN, KNOWN))
    answer = ask(given, predictor)
    assert placed(answer) == {"a": "g0", "b": "g1", "c": "g1"}
    assert codes(answer) == ["NO_GRAPH"]
    assert "for a:" in answer.warnings[0].message


def test_a_job_with_a_key_and_no_graph_needs_no_predictor() -> None:
    answer = ask(snapshot(job("a", job_key="mine"), job("b", job_key="yours")), policy="fifo")
    assert placed(answer) == {"a": "g0", "b": "NO_FREE_GPU"}
    assert codes(answer) == ["NO_GRAPH"]


def test_a_graph_that_the_predictor_refuses_costs_its_own_job_the_prediction(predictor: PickyPredictor) -> None:
    given = snapshot(job("a", graph=BAD), job("b", graph=GOOD), job("c", graph=GOOD), gpus=(KNOWN, KNOWN))
    answer = ask(given, predictor)
    assert placed(answer) == {"a": "g0", "b": "g1", "c": "g1"}
    assert codes(answer) == ["UNKNOWN_GRAPH"]
    reason = next(one.reason for one in answer.decisions if one.job_id == "a")
    assert reason.code == "STARTS_ALONE_PREDICTION_FAILED"


def test_a_refused_graph_of_a_job_that_is_predicted_does_not_spoil_the_pairs_of_the_others(
    predictor: PickyPredictor,
) -> None:
    given = snapshot(job("a", graph=BAD), job("b", graph=GOOD), job("c", graph=GOOD), gpus=(KNOWN, KNOWN))
    known = given.job_predictions.add(job_key="key-a", device=KNOWN, level=3, in_domain=True, utilization_ratio=0.9)
    known.micro_batches.add(micro_batch_size=8, memory_bytes=20 * GIB)
    assert placed(ask(given, predictor)) == {"a": "g0", "b": "g1", "c": "g1"}


def test_a_job_about_which_no_answer_comes_costs_other_jobs_nothing(predictor: PickyPredictor) -> None:
    predictor.silent_about = frozenset({BAD})
    given = snapshot(job("a", graph=GOOD), job("c", graph=BAD), gpus=(KNOWN, KNOWN))
    answer = ask(given, predictor)
    assert set(placed(answer).values()) == {"g0", "g1"}
    assert codes(answer) == ["PREDICTOR_TIMEOUT"]


@pytest.mark.parametrize("is_there", [True, False])
def test_without_an_answering_predictor_jobs_start_alone_and_stated_ones_share(is_there: bool) -> None:
    given = snapshot(job("a", graph=GOOD), job("b", graph=GOOD), job("c"), job("d"), gpus=(KNOWN,) * 3)
    for row in given.pending[2:]:
        row.job.stated_memory_bytes, row.job.stated_utilization_ratio, row.job.stated_slowdown_ratio = GIB, 0.1, 0.1
    with FakePredictor(failure=lambda: grpc.StatusCode.RESOURCE_EXHAUSTED) as silent:
        answer = ask(given, silent if is_there else None)
    gpus = placed(answer)
    assert gpus["c"] == gpus["d"]
    assert len({gpus["a"], gpus["b"], gpus["c"]}) == 3
    assert (codes(answer)[0] == "NO_PREDICTOR") is not is_there
    assert answer.warnings[0].message.startswith("no prediction for a, b: ")
    assert answer.warnings[0].message.endswith("starts alone")


def _negative(name: str, value: float) -> Callable[[scheduling_pb2.SnapshotPending], None]:
    return lambda row: setattr(row.job, name, value)


def _bad_settings(row: scheduling_pb2.SnapshotPending) -> None:
    row.job.settings.global_batch_size = -5


def _bad_wait(row: scheduling_pb2.SnapshotPending) -> None:
    row.job.settings.input_wait_ratio = float("nan")


def _two_waits(row: scheduling_pb2.SnapshotPending) -> None:
    row.job.settings.input_wait_ratio, row.job.settings.input_wait_ms = 0.5, 18.0


def _bad_time(row: scheduling_pb2.SnapshotPending) -> None:
    row.not_before_ms = -1


@for_each(
    ("spoil", "named"),
    [
        (_negative("global_batch_size", -1), "snapshot.job.global_batch_size: of bad must be from 0"),
        (_negative("cpu_cores", float("nan")), "snapshot.job.cpu_cores: of bad must be"),
        (_negative("share", 77), "snapshot.job.share: of bad is no ShareMode"),
        (_negative("memory_floor_bytes", -1), "snapshot.job.memory_floor_bytes: of bad"),
        (_bad_settings, "snapshot.job.settings.global_batch_size: of bad must be from 1"),
        (_bad_wait, "snapshot.job.settings.input_wait_ratio: of bad"),
        (_two_waits, "snapshot.job.settings.input_wait_ms: of bad"),
        (_bad_time, "snapshot.pending.not_before_ms: of bad must be from 0"),
    ],
)
def test_a_bad_row_holds_its_job_and_starts_the_others(
    spoil: Callable[[scheduling_pb2.SnapshotPending], None], named: str
) -> None:
    given = snapshot(job("a"), job("bad"), job("z"), gpus=(KNOWN, KNOWN, KNOWN))
    spoil(given.pending[1])
    answer = ask(given, policy="fifo", explain=True)
    assert placed(answer) == {"a": "g0", "z": "g1", "bad": "INVALID_ROW"}
    assert (codes(answer), answer.warnings[0].message.endswith("the job is held")) == (["INVALID_ROW"], True)
    assert named in answer.warnings[0].message
    reason = next(one.reason for one in answer.decisions if one.job_id == "bad")
    assert reason.numbers == {"violations_count": 1}
    assert "INVALID_ROW" in REASON_TEXTS
    assert "1 value that" in reason.message


def test_a_bad_gpu_or_node_takes_no_job() -> None:
    given = snapshot(job("a"), job("b"), gpus=(KNOWN, KNOWN))
    given.nodes[0].gpus[0].memory_bytes = 0
    other = given.nodes.add(node_id="m", schedulable=True, cpu_cores=float("nan"))
    other.gpus.add(gpu_id="h", device=KNOWN, memory_bytes=24 * GIB, healthy=True)
    assert placed(ask(given, policy="fifo")) == {"a": "g1", "b": "NO_FREE_GPU"}


def test_the_memory_of_a_bad_gpu_is_not_taken_for_that_of_its_type(predictor: PickyPredictor) -> None:
    given = snapshot(job("a", graph=GOOD), gpus=(KNOWN, KNOWN))
    given.nodes[0].gpus[0].memory_bytes = -7
    assert placed(ask(given, predictor)) == {"a": "g1"}
    assert [question.device_memory_bytes for question in predictor.job_questions] == [24 * GIB]


def test_what_a_bad_running_row_holds_stays_occupied_and_takes_no_other_job() -> None:
    given = snapshot(job("a"), job("b"), gpus=(KNOWN, KNOWN))
    running = given.running.add(job=job("r"), steps_done=-1)
    running.assignments.add(gpu_id="g0")
    running.assignments.add(gpu_id="gone")
    answer = ask(given, policy="fifo")
    assert placed(answer) == {"a": "g1", "b": "NO_FREE_GPU"}
    assert len(answer.warnings) == 2
    assert all("take no other job" in warning.message for warning in answer.warnings)


def test_a_running_job_with_impossible_host_needs_closes_its_node() -> None:
    given = snapshot(job("a"), gpus=(KNOWN, KNOWN))
    given.running.add(job=job("r", host_memory_bytes=-1)).assignments.add(gpu_id="g0")
    assert placed(ask(given, policy="fifo"))["a"] != "g1"


def test_a_bad_prediction_is_left_out() -> None:
    given = snapshot(job("a", job_key="k"))
    given.job_predictions.add(job_key="k", device=KNOWN, utilization_ratio=85.0)
    given.pair_predictions.add(victim_job_key="k", other_job_key="k", device=KNOWN, slowdown_ratio=float("inf"))
    answer = ask(given, policy="fifo")
    assert placed(answer) == {"a": "g0"}
    assert codes(answer) == ["INVALID_ROW", "INVALID_ROW", "NO_GRAPH"]


def test_the_snapshot_that_was_sent_stays_as_it_is() -> None:
    given = snapshot(job("a", global_batch_size=-1), job("b"))
    before = given.SerializeToString(deterministic=True)
    ask(given, policy="fifo")
    assert given.SerializeToString(deterministic=True) == before


def test_a_check_without_a_decision_names_the_bad_rows() -> None:
    request = scheduling_pb2.DecideRequest(
        policy="fifo", snapshot=snapshot(job("a", global_batch_size=-1)), validate_only=True
    )
    answer = asyncio.run(decide(request, predictor=None, seconds_left=5))
    assert (codes(answer), len(answer.decisions)) == (["INVALID_ROW"], 0)


def test_a_repeated_or_empty_id_costs_its_own_rows() -> None:
    given = snapshot(job("a"), job("a"), job(""), job("r"), job("z"), gpus=(KNOWN, KNOWN, KNOWN, KNOWN))
    given.nodes[0].gpus[1].gpu_id = "g0"
    for gpu_id in ("g2", "g2"):
        given.running.add(job=job("r")).assignments.add(gpu_id=gpu_id)
    assert placed(ask(given, policy="fifo")) == {"z": "g3", "a": "REPEATED_ID", "": "REPEATED_ID", "r": "REPEATED_ID"}


def test_nodes_of_one_name_take_no_job_and_keep_what_runs_there() -> None:
    given = snapshot(job("a"), gpus=(KNOWN, KNOWN))
    again = given.nodes.add(node_id="n", schedulable=True)
    again.gpus.add(gpu_id="h", device=KNOWN, memory_bytes=24 * GIB, healthy=True)
    given.nodes.add(node_id="m", schedulable=True).gpus.add(gpu_id="f", device=KNOWN, memory_bytes=GIB, healthy=True)
    given.running.add(job=job("r")).assignments.add(gpu_id="h")
    answer = ask(given, policy="fifo")
    assert placed(answer) == {"a": "f"}
    assert [warning.message for warning in answer.warnings] == [
        "snapshot.nodes.node_id: 'n' occurs more than once; the node takes no job"
    ]


def test_an_impossible_clock_costs_no_decision() -> None:
    given = snapshot(job("a"), gpus=(KNOWN,))
    given.pending[0].submitted_at_ms = 7
    for now_ms in (-1, 2**60):
        given.now_ms = now_ms
        answer = ask(given, policy="fifo")
        assert placed(answer) == {"a": "g0"}
        assert answer.warnings[0].message.endswith("the newest time of its rows is taken")


def test_an_unknown_policy_is_still_refused() -> None:
    with pytest.raises(CallerError, match="there is no policy 'magic'"):
        ask(snapshot(job("a")), policy="magic")


@pytest.mark.parametrize("policy", ["horus", "sjf_bsbf", "fifo"])
def test_a_snapshots_job_waits_for_the_reason_that_explain_would_give(policy: str) -> None:
    """Not for room: it asks for more GPUs of one kind than there are, or is larger than any."""
    gpu = scheduling_pb2.SnapshotGpu(gpu_id="n.0", device="d", memory_bytes=8 << 30, healthy=True)
    wide = scheduling_pb2.SnapshotPending(job=scheduling_pb2.SnapshotJob(job_id="wide", gpus=4, job_key="k"))
    there = scheduling_pb2.SnapshotRunning(
        job=scheduling_pb2.SnapshotJob(job_id="a", gpus=1, job_key="k"),
        assignments=[scheduling_pb2.Assignment(gpu_id="n.0")],
        attempt=1,
    )
    node = scheduling_pb2.SnapshotNode(node_id="n", schedulable=True, gpus=[gpu])
    snapshot = scheduling_pb2.Snapshot(now_ms=1_000, nodes=[node], running=[there], pending=[wide])
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=snapshot)
    (decision,) = asyncio.run(decide(request, predictor=None, seconds_left=5)).decisions
    assert decision.reason.code == "GPUS_NOT_IN_CLUSTER"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda one: one.nodes[0].ClearField("schedulable"), "0 nodes say schedulable"),
        (lambda one: one.nodes[0].gpus[0].ClearField("healthy"), "1 GPUs do not say healthy"),
        (lambda one: one.ClearField("nodes"), "states no GPU"),
    ],
)
def test_a_caller_who_left_out_what_makes_gpus_usable_is_told_once(
    spoil: Callable[[scheduling_pb2.Snapshot], None], said: str
) -> None:
    given = snapshot(job("a"), job("b"))
    assert "NO_USABLE_GPU" not in codes(ask(given))
    spoil(given)
    [message] = [one.message for one in ask(given).warnings if one.code == "NO_USABLE_GPU"]
    assert said in message


def test_a_snapshot_without_jobs_needs_no_usable_gpu() -> None:
    assert codes(ask(scheduling_pb2.Snapshot(now_ms=1_000))) == []
