"""The Gaussian process over pairs: its gradient, its closed form for rows left out, and what it learns."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from predictor_service.learning.learning_task import JobFacts, LearningTask
from predictor_service.table_methods import pair_processes, slowdown_process
from predictor_service.table_methods.pair_processes import PairProcesses, ProcessModel, fit_processes
from predictor_service.table_methods.slowdown_candidates import FittedCandidate, TrainingSplit, process_candidate
from predictor_service.table_methods.slowdown_folds import inner_folds
from predictor_service.table_methods.slowdown_kernel import ANY, FAMILY, JOB, SMOOTH, PairKernel
from predictor_service.table_methods.slowdown_pairs import PairRows, build_pair_rows, collect_jobs, learn_job_scale
from predictor_service.table_methods.slowdown_process import ProcessForm, draw_rows, fit_process
from tests.support.time_slicing_jobs import turn_taking_problem

_PARTS = ((JOB, ANY), (ANY, JOB), (SMOOTH, ANY), (ANY, SMOOTH), (SMOOTH, SMOOTH), (FAMILY, FAMILY), (JOB, SMOOTH))
_FORM = ProcessForm(parts=_PARTS, columns=None, shift=0.1, has_line=True)
_TIME = dataclasses.replace(_FORM, shift=1.0)


def _rows(jobs: int = 6) -> tuple[LearningTask, PairRows]:
    learning_task = turn_taking_problem(jobs=jobs, families=3)
    return learning_task, build_pair_rows(learning_task, learn_job_scale(collect_jobs(learning_task)))


@pytest.mark.parametrize("has_line", [True, False])
def test_the_gradient_of_the_kernel_is_the_slope_of_its_matrix(has_line: bool) -> None:
    _, rows = _rows()
    kernel = PairKernel(parts=_PARTS, columns=rows.jobs.columns.shape[1], has_line=has_line)
    random = np.random.default_rng(1)
    at = random.uniform(-1.0, 1.0, kernel.count)
    sensitivity = random.standard_normal((len(rows), len(rows)))
    sensitivity += sensitivity.T
    slopes = []
    for place in range(kernel.count):
        step = np.zeros(kernel.count)
        step[place] = 1e-5
        rise = kernel.matrix(at + step, rows, rows) - kernel.matrix(at - step, rows, rows)
        slopes.append(float((sensitivity * rise).sum() / 2e-5))
    assert kernel.gradient(at, rows, sensitivity) == pytest.approx(slopes, rel=1e-5, abs=1e-6)


def test_rows_left_out_are_predicted_as_by_a_process_that_never_saw_them() -> None:
    learning_task, rows = _rows()
    process = fit_process(_FORM, rows, learning_task.measured)
    left_out = np.flatnonzero(
        [
            job.family == "family0" or others[0].family == "family0"
            for job, others in zip(learning_task.jobs, learning_task.others, strict=True)
        ]
    )
    kept = np.setdiff1d(np.arange(len(rows)), left_out)
    matrix = np.linalg.inv(process.inverse)
    by_hand = matrix[np.ix_(left_out, kept)] @ np.linalg.solve(matrix[np.ix_(kept, kept)], process.residual[kept])
    assert process.leave_out(left_out) == pytest.approx(np.exp(process.middle + by_hand) - _FORM.shift, rel=1e-6)


def test_a_job_never_seen_is_placed_by_its_step_time() -> None:
    learning_task = turn_taking_problem(jobs=14)
    seen = np.array(
        [
            job.job_key != "job005" and others[0].job_key != "job005"
            for job, others in zip(learning_task.jobs, learning_task.others, strict=True)
        ]
    )
    known, new = learning_task.subset(np.flatnonzero(seen)), learning_task.subset(np.flatnonzero(~seen))
    scale = learn_job_scale(collect_jobs(known))
    process = fit_process(_FORM, build_pair_rows(known, scale), known.measured)
    error = np.abs(process.predict(build_pair_rows(new, scale)) - new.measured).mean()
    assert error < 0.15 * np.abs(known.measured.mean() - new.measured).mean()


def test_a_job_that_lacks_a_figure_takes_the_mean_of_the_others() -> None:
    jobs = collect_jobs(turn_taking_problem(jobs=5))
    without = dataclasses.replace(jobs[0], solo=dataclasses.replace(jobs[0].solo, step_ms=None))
    scale = learn_job_scale([without, *jobs[1:]])
    assert scale.place([without])[0, scale.names.index("log_step_ms")] == 0.0
    assert "log_step_ms" not in learn_job_scale([without, without, without, *jobs[3:]]).names


def test_a_step_of_another_unit_is_not_compared() -> None:
    jobs = collect_jobs(turn_taking_problem(jobs=5))
    other_unit = dataclasses.replace(jobs[0], labels={**jobs[0].labels, "step_ms": "not_comparable"})
    scale = learn_job_scale([other_unit, *jobs[1:]])
    assert scale.place([other_unit])[0, scale.names.index("log_step_ms")] == 0.0


def test_a_job_beyond_all_training_jobs_is_taken_to_their_edge() -> None:
    jobs = collect_jobs(turn_taking_problem(jobs=5))
    scale = learn_job_scale(jobs)
    huge = dataclasses.replace(jobs[0], solo=dataclasses.replace(jobs[0].solo, step_ms=1e9))
    assert scale.place([huge])[0, scale.names.index("log_step_ms")] == scale.high[scale.names.index("log_step_ms")]


def test_the_uncertainty_of_a_process_holds_for_rows_left_out() -> None:
    learning_task, rows = _rows()
    process = fit_process(_TIME, rows, learning_task.measured)
    left_out = np.arange(5)
    kept = np.setdiff1d(np.arange(len(rows)), left_out)
    matrix = np.linalg.inv(process.inverse)
    known = matrix[np.ix_(left_out, kept)] @ np.linalg.solve(matrix[np.ix_(kept, kept)], matrix[np.ix_(kept, left_out)])
    by_hand = np.sqrt(np.diag(matrix[np.ix_(left_out, left_out)] - known))
    assert process.leave_out_spread(left_out) == pytest.approx(by_hand, rel=1e-6)


def test_a_pair_of_unseen_jobs_is_less_certain_than_one_of_seen_jobs() -> None:
    learning_task = turn_taking_problem(jobs=10)
    seen = np.array(
        [
            max(job.job_key, others[0].job_key) < "job007"
            for job, others in zip(learning_task.jobs, learning_task.others, strict=True)
        ]
    )
    known = learning_task.subset(np.flatnonzero(seen))
    scale = learn_job_scale(collect_jobs(known))
    process = fit_process(_TIME, build_pair_rows(known, scale), known.measured)
    spread = process.spread(build_pair_rows(learning_task, scale))
    assert spread[~seen].mean() > 1.5 * spread[seen].mean()
    assert (spread >= np.sqrt(process.noise) - 1e-12).all()


@pytest.mark.parametrize("has_line", [True, False])
def test_the_likeness_of_a_pair_with_itself_is_the_diagonal_of_the_matrix(has_line: bool) -> None:
    _, rows = _rows()
    kernel = PairKernel(parts=_PARTS, columns=rows.jobs.columns.shape[1], has_line=has_line)
    at = np.random.default_rng(2).uniform(-1.0, 1.0, kernel.count)
    assert kernel.variance(at, rows) == pytest.approx(np.diag(kernel.matrix(at, rows, rows)))


def _hidden_waits(seed: int = 0) -> LearningTask:
    """Every job makes others wait for as long as it likes; a victim does not notice what fits into its idle time."""
    learning_task = turn_taking_problem(jobs=12)
    random = np.random.default_rng(seed)
    shares = dict(zip(sorted({job.job_key for job in learning_task.jobs}), random.uniform(0.2, 1.0, 12), strict=True))
    waits = {key: float(wait) for key, wait in zip(shares, random.uniform(0.8, 3.0, 12), strict=True)}

    def known(job: JobFacts) -> JobFacts:
        return dataclasses.replace(job, solo=dataclasses.replace(job.solo, utilization_ratio=shares[job.job_key]))

    rows = list(zip(learning_task.jobs, learning_task.others, strict=True))
    measured = [waits[others[0].job_key] * shares[job.job_key] - (1.0 - shares[job.job_key]) for job, others in rows]
    return dataclasses.replace(
        learning_task,
        measured=np.array(measured, dtype=np.float64),
        jobs=tuple(known(job) for job, _ in rows),
        others=tuple((known(others[0]),) for _, others in rows),
    )


def test_a_wait_that_idle_time_hides_is_learned_whole() -> None:
    learning_task = _hidden_waits()
    learning_task = learning_task.subset(np.flatnonzero(learning_task.measured > 0.0))
    scale = learn_job_scale(collect_jobs(learning_task)).keep(())
    rows = build_pair_rows(learning_task, scale)
    held_out = np.arange(0, len(learning_task), 5)
    errors = {}
    for hides_waits in (False, True):
        form = dataclasses.replace(_FORM, parts=((JOB, ANY), (ANY, JOB)), has_line=False, hides_waits=hides_waits)
        process = fit_process(form, rows, learning_task.measured)
        errors[hides_waits] = np.abs(process.leave_out(held_out) - learning_task.measured[held_out]).mean()
    assert errors[True] < 0.5 * errors[False]


def _thinned(
    monkeypatch: pytest.MonkeyPatch, learning_task: LearningTask, rows_max: int
) -> tuple[FittedCandidate, TrainingSplit]:
    monkeypatch.setattr(slowdown_process, "ROWS_MAX", rows_max)
    _, folds = inner_folds(learning_task, "job", shots=0, seed=0)
    training_split = TrainingSplit(learning_task=learning_task, folds=folds, level="job", seed=0)
    return process_candidate(_TIME)(training_split), training_split


def test_a_process_sees_few_of_many_rows_and_answers_every_held_out_one(monkeypatch: pytest.MonkeyPatch) -> None:
    learning_task = turn_taking_problem(jobs=12)
    learned, training_split = _thinned(monkeypatch, learning_task, 60)
    assert isinstance(learned.model, PairProcesses)
    process = learned.model.together.process
    assert len(process.rows) == 60
    assert learned.rows_left_out == len(learning_task) - 60
    tested = np.concatenate([fold.test for fold in training_split.folds])
    assert learned.held_out.shape == tested.shape
    assert learned.spread is not None
    assert (learned.spread >= np.sqrt(process.noise) - 1e-9).all()
    by_mean = np.abs(learning_task.measured.mean() - learning_task.measured[tested]).mean()
    assert np.abs(learned.held_out - learning_task.measured[tested]).mean() < 0.5 * by_mean


def test_a_process_forgets_what_is_held_out_with_the_rows_that_it_never_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured of a fold's rows, seen or not, changes none of its held-out answers."""
    learning_task = turn_taking_problem(jobs=12)
    learned, training_split = _thinned(monkeypatch, learning_task, 60)
    assert isinstance(learned.model, PairProcesses)
    model, fold = learned.model.together, training_split.folds[0]
    process = model.process
    seen = draw_rows(len(learning_task), 0)
    places = np.searchsorted(seen, np.intersect1d(fold.test, seen))
    remaining = process.without(places)
    assert remaining.residual.shape == (60 - len(places),)
    unseen = ~np.isin(fold.test, seen)
    by_hand = remaining.predict(build_pair_rows(learning_task.subset(fold.test[unseen]), model.scale))
    assert learned.held_out[: len(fold.test)][unseen] == pytest.approx(by_hand)
    kept = np.setdiff1d(np.arange(60), places)
    assert remaining.inverse == pytest.approx(
        np.linalg.inv(np.linalg.inv(process.inverse)[np.ix_(kept, kept)]), rel=1e-4
    )


def test_a_process_that_saw_nothing_but_what_is_held_out_answers_its_mean() -> None:
    learning_task, rows = _rows()
    process = fit_process(_TIME, rows, learning_task.measured)
    empty = process.without(np.arange(len(rows)))
    assert empty.predict(rows) == pytest.approx(np.full(len(rows), np.exp(process.middle) - 1.0))
    assert np.isfinite(empty.spread(rows)).all()


def test_many_rows_are_answered_in_parts_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    learning_task, rows = _rows()
    scale = learn_job_scale(collect_jobs(learning_task))
    model = ProcessModel(fit_process(_TIME, rows, learning_task.measured), scale)
    monkeypatch.setattr(pair_processes, "_CHUNK_ROWS", 7)
    assert model.predict(learning_task) == pytest.approx(model.process.predict(rows))
    assert model.predict(learning_task.subset([])).shape == (0,)


def _two_devices() -> LearningTask:
    """The same pairs on two device types, on one of which everything slows down by half as much."""
    one, two = (turn_taking_problem(jobs=9, seed=3), turn_taking_problem(jobs=9, seed=3, noise=0.011))
    jobs = {job.job_key: dataclasses.replace(job, device="another") for job in two.jobs}
    return dataclasses.replace(
        one,
        device="all",
        measured=np.concatenate([one.measured, 0.5 * two.measured]),
        row_ids=(*one.row_ids, *(f"another {name}" for name in two.row_ids)),
        jobs=(*one.jobs, *(jobs[job.job_key] for job in two.jobs)),
        others=(*one.others, *((jobs[other.job_key],) for (other,) in two.others)),
    )


def test_every_device_type_has_a_process_of_its_own_that_sees_all_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    learning_task = _two_devices()
    monkeypatch.setattr(slowdown_process, "ROWS_MAX", 90)
    _, folds = inner_folds(learning_task, "random_pair", shots=0, seed=0)
    training_split = TrainingSplit(learning_task=learning_task, folds=folds, level="random_pair", seed=0)
    learned = process_candidate(_TIME)(training_split)
    assert learned.rows_left_out == 0
    tested = np.concatenate([fold.test for fold in folds])
    thinned = fit_processes(_TIME, learning_task, folds, "device", 0)
    assert thinned.rows_seen == 90
    errors = [
        np.abs(values - learning_task.measured[tested]).mean()
        for values in (learned.held_out, thinned.leave_out(folds)[0])
    ]
    assert errors[0] < 0.9 * errors[1]


def test_rows_of_a_device_type_that_was_not_learned_are_answered_by_all_rows_together() -> None:
    learning_task = _two_devices()
    model = fit_processes(_TIME, learning_task, (), "job", 0)
    assert len(model.parts) == 2
    strange = dataclasses.replace(
        learning_task,
        jobs=tuple(dataclasses.replace(job, device="third") for job in learning_task.jobs),
        others=tuple((dataclasses.replace(other, device="third"),) for (other,) in learning_task.others),
    )
    assert model.predict(strange) == pytest.approx(model.together.predict(strange))
    assert (model.spread(strange) > 0).all()


def test_device_types_with_few_rows_are_learned_together() -> None:
    learning_task = _two_devices()
    few = learning_task.subset([*range(81), *range(81, 81 + pair_processes.PART_ROWS_MIN - 1)])
    assert len(fit_processes(_TIME, few, (), "job", 0).parts) == 1
