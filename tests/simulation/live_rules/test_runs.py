"""Small runs whose outcome is computed by hand: sharing, stops, memory, failures, kinds of GPUs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cotenant_simulator.errors import BrokenSimulationError
from cotenant_simulator.report.json_report import Question, as_json
from cotenant_simulator.run.accounts import Accounts, check_conservation
from cotenant_simulator.run.attempts import GpuOccupancy
from cotenant_simulator.run.records import JobResult, NodeFailures, OverheadCosts, RunResult
from cotenant_simulator.truth.cluster import read_cluster
from cotenant_simulator.truth.kinds import DOES_NOT_FIT, GroundTruth
from cotenant_simulator.truth.trace import GIB
from scheduler_service.core import commands, events
from scheduler_service.core.codec import decode_event, encode_event
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.policy_registry import POLICIES, make_policy
from tests.support.cases import for_each
from tests.support.simulated_runs import drawn, ends_s, kind, run, simulation, trace_job, trace_of


def test_two_jobs_on_one_gpu_slow_each_other_down_while_they_are_together() -> None:
    # Alone 100 s and 60 s; together both take 1.5 times as long: the short one ends after 90 s, and the long
    # one, of which 60 s are done by then, 40 s later.
    trace = trace_of(trace_job("long", seconds=100), trace_job("short", seconds=60), slowdown_ratio=0.5)
    result = run(trace, policy="obp")
    assert ends_s(result) == {"long": 130.0, "short": 90.0}
    by_id = {job.job_id: job for job in result.jobs}
    assert by_id["short"].slowdown_ratio == pytest.approx(0.5)
    assert by_id["long"].slowdown_ratio == pytest.approx(0.3)
    assert result.gpu_ms_held == 130_000


def test_a_gang_goes_at_the_pace_of_its_slowest_gpu() -> None:
    wide, small = trace_job("wide", gpus=2, seconds=100, key="wide"), trace_job("small", seconds=400, key="small")
    trace = trace_of(small, wide, slowdown_ratio=1.0, kinds={"wide": kind(batch=2), "small": kind()})
    result = run(trace, policy="sjf_ffs", cluster="1x2")
    assert ends_s(result)["wide"] == 200.0


def test_smaller_passes_cost_time_and_save_memory() -> None:
    big = kind(memory_bytes=12 * GIB, batch=32, fixed_step_ratio=0.1, fixed_memory_ratio=0.0)
    jobs = [
        trace_job("first", seconds=1_000, key="small"),
        trace_job("big", seconds=50, key="big", global_batch_size=32),
    ]
    trace = trace_of(*jobs, slowdown_ratio=0.2, kinds={"small": kind(), "big": big})
    result = run(trace, policy="sjf_bsbf")
    # Half the batch fits with the first job: two passes cost a tenth more, both jobs a fifth.
    assert ends_s(result)["big"] == pytest.approx(50 * 1.1 * 1.2, abs=0.001)


def test_a_stopped_job_pays_for_its_checkpoint_and_its_restart() -> None:
    charges = OverheadCosts(launch_ms=1_000, restart_ms=20_000, checkpoint_ms=10_000, checkpoint_interval_ms=0)
    trace = trace_of(trace_job("long", seconds=1_000), trace_job("short", at_s=101, seconds=100))
    result = run(trace, policy="srtf", charges=charges)
    # The long one trains from 1 s to 101 s and is stored until 111 s; the short one trains from 112 s to 212 s; the
    # other is launched and loaded until 233 s and needs its remaining 900 s.
    assert ends_s(result) == {"long": 1_133.0, "short": 212.0}
    assert [job.preemptions for job in result.jobs] == [1, 0]


def test_a_job_that_runs_out_of_memory_is_found_to_need_more_and_tries_again() -> None:
    jobs = [trace_job("one", seconds=100), trace_job("two", seconds=100)]
    trace = trace_of(*jobs, kinds={"kind": kind(memory_bytes=10 * GIB)}, slowdown_ratio=0.0)
    liar = simulation(trace, policy="obp")
    true_job = liar._predictor.job

    def half(question: commands.RequestPrediction) -> object:
        prediction = true_job(question)
        assert prediction is not None
        return type(prediction)(
            key=prediction.key,
            device=prediction.device,
            utilization_ratio=0.5,
            memory={
                size: type(one)(memory_bytes=4 * GIB, memory_bytes_upper_99=5 * GIB)
                for size, one in prediction.memory.items()
            },
            step_ms=prediction.step_ms,
        )

    liar._predictor.job = half  # type: ignore[method-assign, assignment]
    result = liar.run()
    assert sum(job.out_of_memory for job in result.jobs) >= 1
    assert result.unfinished == 0
    assert max(ends_s(result).values()) >= 200.0


def test_a_pair_that_was_seen_not_to_fit_runs_out_of_memory() -> None:
    trace = trace_of(trace_job("one"), trace_job("two"), slowdown_ratio=DOES_NOT_FIT)
    patient = run(trace, policy="sjf_bsbf")
    assert ends_s(patient) == {"one": 100.0, "two": 200.0}


def test_a_lost_machine_costs_the_work_since_the_newest_checkpoint() -> None:
    charges = OverheadCosts(launch_ms=0, restart_ms=0, checkpoint_ms=0, checkpoint_interval_ms=60_000)
    trace = trace_of(trace_job("job", seconds=3_600))
    failures = NodeFailures(mean_up_ms=1_500_000, repair_ms=100_000)
    result = run(trace, charges=charges, failures=failures, seed=3)
    (job,) = result.jobs
    assert job.attempts > 1
    assert job.is_finished
    lost_s = job.trained_ms / 1_000 - 3_600
    assert 0 < lost_s < 60.0 * (job.attempts - 1)


def test_failures_spare_no_job_and_every_job_still_ends() -> None:
    failures = NodeFailures(mean_up_ms=900_000, repair_ms=60_000)
    trace = drawn(jobs=60, classes=[{"step_ms": 100.0, "gpus": [1, 2, 6], "mean_s": 300.0}])
    result = run(trace, cluster="3x4", failures=failures, charges=OverheadCosts(), policy="sjf", seed=1)
    assert result.unfinished == 0
    assert max(job.attempts for job in result.jobs) > 1


def test_a_faster_kind_of_gpu_ends_jobs_sooner(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[[nodes]]\ndevice = "old"\n[[nodes]]\ndevice = "new"\nspeed_ratio = 4.0\n')
    machines = read_cluster(str(file), device="gpu")
    trace = trace_of(trace_job("one"), trace_job("two"), speeds=machines.speeds)
    assert ends_s(run(trace, cluster=machines)) == {"one": 25.0, "two": 100.0}


def test_a_job_that_fits_nowhere_waits_and_is_counted() -> None:
    result = run(trace_of(trace_job("wide", gpus=8), trace_job("small")), cluster="1x2")
    assert result.unfinished == 1
    assert result.held_reasons == {"GPUS_NOT_IN_CLUSTER": 1}
    assert [job.outcome for job in result.jobs] == ["waiting", "finished"]


WORKLOAD = {
    "jobs": 40,
    "arrival": {"mean_s": 30.0},
    "classes": [{"step_ms": 200.0, "gpus": [1, 2], "mean_s": 200.0, "batch": 8}],
}


@for_each("name", sorted(POLICIES))
def test_every_job_finishes_after_arrivals_stop(name: str) -> None:
    result = run(drawn(seed=2, **WORKLOAD), cluster="2x4", policy=name, charges=OverheadCosts())
    assert [job.job_id for job in result.jobs if not job.is_finished] == []
    assert result.rejected_decisions == 0


def _report(result: RunResult) -> str:
    question = Question(
        trace_path="drawn.toml",
        trace_sha256="",
        trace_jobs=len(result.jobs),
        cluster="2x4",
        engine_rules="live",
        predictions="noise:0.3",
        seed=5,
        has_jobs=True,
    )
    return json.dumps(as_json(question, [result]))


def test_equal_seeds_give_equal_bytes_and_others_do_not() -> None:
    settings = {"cluster": "2x4", "policy": "sjf_bsbf", "predictions": "noise:0.3", "charges": OverheadCosts()}
    first, again = (_report(run(drawn(seed=5, **WORKLOAD), seed=5, **settings)) for _ in range(2))
    assert first == again
    assert _report(run(drawn(seed=5, **WORKLOAD), seed=6, **settings)) != first


@pytest.mark.parametrize("name", ["fifo", "srtf", "sjf_bsbf", "elastic"])
def test_a_log_replayed_gives_the_same_commands(name: str) -> None:
    log: list[tuple[str, Sequence[commands.Command]]] = []

    def note(event: events.Event, orders: Sequence[commands.Command]) -> None:
        log.append((json.dumps(encode_event(event)), list(orders)))

    failures = NodeFailures(mean_up_ms=600_000, repair_ms=60_000)
    run(drawn(seed=4, **WORKLOAD), cluster="2x4", policy=name, charges=OverheadCosts(), failures=failures, observe=note)
    engine = SchedulerEngine(make_policy=make_policy, policy=name, nodes_per_job_max=0, ended_jobs_max=1_000)
    for line, orders in log:
        assert engine.handle(decode_event(json.loads(line))) == orders


@pytest.mark.parametrize(
    ("change", "law"),
    [({"job_ms": 1}, "Little"), ({"job_gpu_ms": 5}, "attempts held"), ({"gpu_ms_held": -1}, "GPU ms held")],
)
def test_broken_books_are_noticed(change: dict[str, int], law: str) -> None:
    accounts = Accounts(occupancy=GpuOccupancy(truth=GroundTruth(kinds={}), gpus={}, checkpoint_interval_ms=0))
    job = JobResult(job_id="j", gpus=1, submitted_at_ms=0, solo_ms=0.0, finished_at_ms=0)
    check_conservation(accounts, [job], gpu_ms_by_jobs=0)
    for name, value in change.items():
        setattr(accounts, name, value)
    with pytest.raises(BrokenSimulationError, match=law):
        check_conservation(accounts, [job], gpu_ms_by_jobs=0)


def test_the_clock_never_runs_back() -> None:
    accounts = Accounts(
        occupancy=GpuOccupancy(truth=GroundTruth(kinds={}), gpus={}, checkpoint_interval_ms=0), now_ms=10
    )
    with pytest.raises(BrokenSimulationError, match="back from 10 to 9"):
        accounts.advance(9)
