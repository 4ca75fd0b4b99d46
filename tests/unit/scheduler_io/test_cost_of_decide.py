"""What a question to Decide must not do: leave itself to be collected, or price each GPU where its kind has a price."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from itertools import product

import pytest

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.core.predictions.measured_averages import Sizes
from scheduler_service.core.records import PairPrediction
from scheduler_service.core.sharing.sharing_consent import consented_slowdowns
from scheduler_service.grpc_api.snapshots.decide import decide
from scheduler_service.grpc_api.snapshots.snapshot_pairs import KeyPair, PairRows
from scheduler_service.policies.packing import ojpp_packing
from scheduler_service.policies.placement.horus_prices import HorusPrices
from tests.support.cases import for_each

GIB = 2**30
DEVICE = "NVIDIA A100-SXM4-80GB"


def snapshot(*, gpus: int, running: int, pending: int) -> scheduling_pb2.Snapshot:
    """Nodes of 8 GPUs; the jobs are of two kinds, of which predictions are stated."""
    made = scheduling_pb2.Snapshot(now_ms=10_000_000)
    for number in range(gpus // 8):
        node = made.nodes.add(node_id=f"n{number:03}", schedulable=True)
        for index in range(8):
            node.gpus.add(gpu_id=f"n{number:03}.{index}", device=DEVICE, memory_bytes=80 * GIB, healthy=True)
    for number in range(running):
        row = made.running.add(job=_job(f"r{number}", number), micro_batch_size=32, steps_done=10)
        row.assignments.add(gpu_id=f"n{number // 8:03}.{number % 8}")
    for number in range(pending):
        made.pending.add(job=_job(f"p{number}", number), submitted_at_ms=number)
    for key in ("even", "odd"):
        about = {"device": DEVICE, "level": resources_pb2.ESTIMATE_LEVEL_GRAPH, "in_domain": True}
        known = made.job_predictions.add(job_key=key, utilization_ratio=0.5, **about)
        known.micro_batches.add(micro_batch_size=32, memory_bytes=9 * GIB, memory_bytes_upper_99=10 * GIB)
        known.step_times.add(gpus=1, micro_batch_size=32, step_ms=100)
    return made


def _job(job_id: str, number: int) -> scheduling_pb2.SnapshotJob:
    return scheduling_pb2.SnapshotJob(
        job_id=job_id,
        job_key=("even", "odd")[number % 2],
        gpus=1,
        global_batch_size=32,
        steps_total=100 + number,
        share=resources_pb2.SHARE_MODE_SAFE,
        max_slowdown_ratio=0.3,
    )


def ask(policy: str, given: scheduling_pb2.Snapshot) -> scheduling_pb2.DecideResponse:
    request = scheduling_pb2.DecideRequest(policy=policy, snapshot=given)
    return asyncio.run(decide(request, predictor=None, seconds_left=600))


@for_each("policy", ["fifo", "horus", "ojpp", "optimus", "pollux", "sjf_bsbf", "srtf"])
def test_a_question_leaves_no_gpu_and_no_job_to_be_collected(policy: str) -> None:
    ask(policy, snapshot(gpus=64, running=16, pending=4))
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        ask(policy, snapshot(gpus=64, running=16, pending=4))
        gc.collect()
        left = Counter(type(one).__name__ for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    assert not {"Gpu", "GpuView", "RunningJob", "JobRequest", "SchedulingView"} & left.keys(), left


def test_what_empty_gpus_cost_is_found_once_for_jobs_of_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    put = HorusPrices.put_unasked

    def counted(self: HorusPrices, *args: object) -> None:
        asked.append(args[0])
        put(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(HorusPrices, "put_unasked", counted)
    answer = ask("horus", snapshot(gpus=256, running=16, pending=40))
    assert sum(one.HasField("start") for one in answer.decisions) == 40
    assert len(asked) == 2


@pytest.mark.parametrize(("running", "asked_max"), [(32, 0), (64, 64)])
def test_ojpp_finds_why_gpus_refuse_a_job_only_where_it_has_to_wait(
    running: int, asked_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def counted(*args: object) -> object:
        asked.append(args)
        return consented_slowdowns(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(ojpp_packing, "consented_slowdowns", counted)
    given = snapshot(gpus=64, running=running, pending=1)
    for victim, other in product(("even", "odd"), repeat=2):
        about = {"device": DEVICE, "level": resources_pb2.ESTIMATE_LEVEL_GRAPH, "in_domain": True}
        given.pair_predictions.add(victim_job_key=victim, other_job_key=other, slowdown_ratio=0.4, **about)
    (decision,) = ask("ojpp", given).decisions
    assert decision.HasField("start") == (running < 64)
    assert decision.reason.code == ("STARTS_ALONE" if running < 64 else "SLOWDOWN_TOO_HIGH")
    assert len(asked) == asked_max


@pytest.mark.parametrize("utilization_ratio", [0.6, 0.4])
def test_ojpp_asks_of_no_pair_that_computes_more_than_a_gpu_can(
    utilization_ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[KeyPair] = set()
    find = PairRows.find

    def counted(self: PairRows, keys: KeyPair, sizes: Sizes) -> PairPrediction | None:
        asked.add(keys)
        return find(self, keys, sizes)

    monkeypatch.setattr(PairRows, "find", counted)
    given = snapshot(gpus=64, running=32, pending=1)
    given.job_predictions[1].utilization_ratio = utilization_ratio
    (decision,) = ask("ojpp", given).decisions
    assert decision.HasField("start")
    assert (("even", "odd", DEVICE) in asked) == (utilization_ratio < 0.5)
