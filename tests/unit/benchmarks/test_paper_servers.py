"""Optimus with parameter servers: what is drawn, how numbers and places are chosen, and rounds by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers import optimus_causes, optimus_parameters, optimus_servers
from benchmarks.papers.optimus_causes import draw_published, published_models
from benchmarks.papers.parameter_servers import NodeTasks
from benchmarks.papers.server_beliefs import Beliefs, fitted_step_s, remote_step_s
from benchmarks.papers.server_jobs import ServerJob, changed_plan, draw_jobs, plan, training_of, vary_job
from benchmarks.papers.server_limits import least_jct_h
from benchmarks.papers.server_rounds import World, run, stragglers_of
from benchmarks.papers.server_schemes import (
    ALLOCATIONS,
    PLACEMENTS,
    Place,
    place_balanced,
    place_in_equal_parts,
    place_packed,
    scheme,
    shrunk,
)
from benchmarks.papers.server_stragglers import asynchronous_stragglers, synchronous_stragglers
from benchmarks.papers.targets import TargetError, find_order, find_values
from tests.support.cases import sampled


def test_modes_and_arrivals_leave_the_rest_as_it_was() -> None:
    drawn, poisson = draw_jobs(1), draw_jobs(1, arrivals="poisson")
    assert [one.training for one in drawn] == [one.training for one in poisson]
    assert [one.submitted_s for one in drawn] != [one.submitted_s for one in poisson]
    sizes = [[one.training.model_bytes for one in draw_jobs(1, mode=mode)] for mode in ("asynchronous", "synchronous")]
    assert sizes[0] == sizes[1]


def test_one_pair_on_one_node_needs_between_one_and_twelve_hours() -> None:
    for job in draw_jobs(2):
        assert 0.99 <= job.steps * job.training.paired_step_ms([1]) / 3_600_000 <= 12.01


def test_a_varied_job_differs_in_what_was_varied_and_is_as_long_as_asked_alone() -> None:
    job = draw_jobs(0)[0]
    for changes, length_ratio in (({"batch_ratio": 4.0}, 1.0), ({"bandwidth_ratio": 0.25, "length_ratio": 3.0}, 3.0)):
        varied = vary_job(job, **changes)
        alone_ms = job.steps * job.training.paired_step_ms([1])
        assert varied.steps * varied.training.paired_step_ms([1]) == pytest.approx(length_ratio * alone_ms)
        assert varied.training != job.training


def test_resnet_50_takes_what_table_2_says() -> None:
    """1.02 x 20 / 4 + 2.78 + 4.92 + 0.02 x 4 s; the exchange of 4.8 s comes from bytes and a third of the link."""
    assert training_of("ResNet-50", "synchronous").remote_step_ms(4, 4) == pytest.approx(12_880.0)
    # 2.83 + 3.92 x 4 / 4 + 0.11 x 4 s for every worker.
    assert training_of("ResNet-50", "asynchronous").remote_step_ms(4, 4) == pytest.approx(7_190.0 / 4, rel=2e-3)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (place_in_equal_parts, {0: (2, 2)}),
        (place_balanced, {0: (2, 1), 1: (0, 1)}),
        (place_packed, {1: (2, 1), 0: (0, 1)}),
    ],
)
def test_four_tasks_lie_where_each_scheduler_puts_them(place: Place, expected: object) -> None:
    assert place([6, 3], [6, 3], (2, 2)) == expected


def test_what_does_not_fit_gets_smaller_until_nothing_is_left() -> None:
    assert [shrunk((3, 3)), shrunk((2, 3)), shrunk((2, 2)), shrunk((1, 1))] == [(2, 3), (2, 2), (1, 2), (0, 0)]
    assert all(place([1, 1], [1, 1], (2, 2)) == {} for place, _ in PLACEMENTS.values())


def _job(name: str = "job", **changes: object) -> ServerJob:
    training = replace(training_of("KAGGLE", "synchronous"), per_server_ms=0.0, update_ms=0.0)
    return replace(ServerJob(name=name, submitted_s=0.0, steps=1.0, training=training), **changes)  # type: ignore[arg-type]


def test_a_job_alone_runs_as_its_step_time_says() -> None:
    """Three pairs on one node: nothing is exchanged, and nothing changes until the end."""
    job = _job(steps=1_000.0)
    outcome = run([job], scheme("tetris", "optimus"), World(seed=0))
    assert outcome.jct_h * 3_600_000 == pytest.approx(1_000 * job.training.paired_step_ms([3]))
    assert outcome.overhead_percent == 0.0
    assert outcome.tasks == pytest.approx(6.0)
    assert outcome.busy_ratio == pytest.approx(1.0)


def test_a_job_that_comes_between_two_rounds_waits_for_the_next() -> None:
    jobs = [_job("first", steps=10.0), _job("second", steps=10.0, submitted_s=1.0)]
    outcome = run(jobs, scheme("tetris", "optimus"), World(seed=0))
    length_s = 10 * jobs[0].training.paired_step_ms([3]) / 1_000
    assert outcome.jct_h * 3_600 == pytest.approx((length_s + 1_199.0 + length_s) / 2)


def test_every_scheduler_ends_every_job_in_every_world() -> None:
    for numbers in ALLOCATIONS:
        for places in PLACEMENTS:
            for shares_links in (False, True):
                outcome = run(draw_jobs(3), scheme(numbers, places), World(seed=3, shares_links=shares_links))
                assert 0 < outcome.jct_h < outcome.makespan_h
                assert 0 < outcome.busy_ratio <= 1.0
                assert 2 <= outcome.tasks <= sum(plan()["nodes"]["containers"])


def test_errors_of_belief_are_as_large_as_asked_and_fall_on_the_job_or_on_every_pair() -> None:
    job = draw_jobs(0)[0]
    truth = remote_step_s(job.training)[1:, 1:]
    by_job = truth / Beliefs(speed_error_ratio=0.2).step_s(job, 0)[1:, 1:]
    by_pair = truth / Beliefs(speed_error_ratio=0.2, errs_by_pair=True).step_s(job, 0)[1:, 1:]
    assert len(np.unique(by_job.round(6))) == 1
    assert np.unique(by_pair.round(6)).tolist() == [0.8, 1.2]
    assert {Beliefs(steps_error_ratio=0.2).steps_ratio(job, seed) for seed in range(20)} == {0.8, 1.2}


def test_speeds_are_fitted_to_five_runs_which_they_meet() -> None:
    job = draw_jobs(4)[0]
    measured = Beliefs(fits_speeds=True).preruns(job, 0)
    assert len(measured) == 5
    fitted = fitted_step_s(job.training, measured)
    assert fitted.shape == remote_step_s(job.training).shape
    assert all(fitted[counts] == pytest.approx(step_s, rel=0.25) for counts, step_s in measured.items())
    assert Beliefs().preruns(job, 0) == {}


def test_asynchronous_workers_below_half_the_median_speed_straggle() -> None:
    assert asynchronous_stragglers([10.0, 9.0, 11.0, 4.7]) == [3]
    assert asynchronous_stragglers([10.0, 9.0, 11.0, 4.8]) == []
    assert asynchronous_stragglers([3.0]) == []


def test_synchronous_workers_that_compute_or_exchange_twice_as_long_straggle() -> None:
    assert synchronous_stragglers([1.0, 1.0, 2.0], [1.0, 1.0, 1.0]) == [2]
    assert synchronous_stragglers([1.0, 1.0, 1.9], [5.0, 1.0, 1.0]) == [0]
    assert synchronous_stragglers([1.0, 2.1], [1.0, 1.0]) == [1]
    assert synchronous_stragglers([7.0], [7.0]) == []


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_a_worker_that_computes_three_times_as_long_is_found_where_computing_counts(mode: str) -> None:
    training = training_of("KAGGLE", mode)
    assert stragglers_of(training, [NodeTasks(workers=4, servers=4)], [1.0, 3.0, 1.0, 1.0]) == [1]
    assert stragglers_of(training, [NodeTasks(workers=4, servers=4)], [1.0] * 4) == []


def test_stragglers_cost_time_and_less_when_they_are_replaced() -> None:
    found = {
        how: [run(draw_jobs(seed), scheme("optimus", "optimus"), World(seed=seed, straggling=how)) for seed in range(3)]
        for how in ("", "ignored", "replaced")
    }
    means = {how: sum(one.jct_h for one in outcomes) for how, outcomes in found.items()}
    assert means[""] < means["replaced"] < means["ignored"]


def test_mxnet_gets_slower_by_its_imbalance_and_paa_does_not() -> None:
    speeds = optimus_parameters.speeds_of(10, 3)
    training = training_of("ResNet-50", "synchronous")
    assert speeds["paa"][0] == pytest.approx(1_000 / training.remote_step_ms(10, 10), rel=0.02)
    assert max(speeds["mxnet"]) < speeds["paa"][0]


def test_what_the_paper_prints_is_found_and_what_it_does_not_print_is_an_error() -> None:
    assert find_values("optimus", "Fig. 18", "jct_reduction") == {"optimus_below_tetris": 10, "optimus_below_drf": 15}
    assert list(find_order("optimus", "Fig. 15", "drf over optimus")) == ["asynchronous", "synchronous"]
    with pytest.raises(TargetError, match=r"no joy at Fig\. 18 of optimus"):
        find_values("optimus", "Fig. 18", "joy")


def test_every_part_prints_rows_next_to_the_papers() -> None:
    rows = optimus_servers.main(1, ["placement"])["rows"]
    assert isinstance(rows, list)
    assert [row["paper"] for row in rows if row["place"] == "Fig. 18"] == [15.0, 10.0] * 4


def test_other_rules_hold_only_where_they_were_asked_for() -> None:
    with changed_plan(jobs=18, tasks_max=3):
        assert len(draw_jobs(0)) == 18
        assert remote_step_s(draw_jobs(0)[0].training).shape == (4, 4)
    assert len(draw_jobs(0)) == plan()["jobs"] == 9
    assert remote_step_s(draw_jobs(0)[0].training).shape == (21, 21)


def test_published_speeds_are_those_of_the_coefficients() -> None:
    """Eq. 4 of vgg-16: 0.0143 x 32 / 2 + 0.785 + 0.854 x 2 / 4 + 0.0912 x 2 s."""
    training, _ = published_models()["vgg-16"]
    assert training.remote_step_ms(2, 4) == pytest.approx(1_000 * (0.2288 + 0.785 + 0.427 + 0.1824))
    lengths = [length for _, length in published_models().values()]
    assert sum(lengths) / len(lengths) == pytest.approx(1.0, abs=0.001)


def test_published_jobs_come_when_the_committed_ones_do_and_keep_their_lengths_where_asked() -> None:
    drawn, kept, own = draw_jobs(3), draw_published(3), draw_published(3, keeps_lengths=False)
    assert [one.submitted_s for one in drawn] == [one.submitted_s for one in own]

    def alone(job: ServerJob) -> float:
        return job.steps * job.training.paired_step_ms([1])

    assert [alone(one) for one in kept] == pytest.approx([alone(one) for one in drawn])
    shares = {one.training: alone(one) for one in own}
    models = published_models().values()
    lengths = {length: shares[training] for training, length in models if training in shares}
    (first, first_ms), *others = lengths.items()
    assert others
    assert all(ms / first_ms == pytest.approx(length / first) for length, ms in others)


def test_the_least_completion_time_of_two_jobs_is_found_by_hand() -> None:
    """On one container each of a pair the jobs take 2 and 4 h; one machine of two containers' power ends them so."""
    with changed_plan(tasks_max=1, nodes={"containers": [2]}):
        training = replace(training_of("KAGGLE", "synchronous"), sample_ms=0.0, fixed_ms=3_600_000.0)
        step_h = training.paired_step_ms([1]) / 3_600_000
        jobs = [ServerJob(name=name, submitted_s=0.0, steps=steps, training=training) for name, steps in _LENGTHS]
        assert least_jct_h(jobs) == pytest.approx(step_h * (2.0 + (2.0 + 4.0)) / 2)
        assert least_jct_h(jobs[:1]) == pytest.approx(4.0 * step_h)
        later = [replace(jobs[0], submitted_s=600.0)]
        assert least_jct_h(later) == pytest.approx(4.0 * step_h + 600 / 3_600)


_LENGTHS = (("long", 4.0), ("short", 2.0))


@pytest.mark.parametrize("scheduler", sampled(["optimus", "drf", "tetris"], 1))
def test_no_schedule_beats_the_least_completion_time(scheduler: str) -> None:
    for jobs, shares_links in ((draw_jobs(5), False), (draw_jobs(5), True), (draw_published(5), False)):
        outcome = run(jobs, scheme(scheduler, scheduler), World(seed=5, shares_links=shares_links))
        assert outcome.jct_h > least_jct_h(jobs, shares_links=shares_links)


@pytest.mark.endurance
def test_causes_print_the_paper_next_to_one_changed_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimus_causes, "COMPUTING", (5,))
    rows = optimus_causes.main(1, ["computing"])["rows"]
    assert isinstance(rows, list)
    assert [row["paper"] for row in rows] == [2.39, None, 1.63, None, None] * 2
    assert sum("limits" in row["setting"] for row in rows) == 2
