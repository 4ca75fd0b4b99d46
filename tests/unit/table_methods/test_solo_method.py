"""What the method for jobs alone learns, chooses and bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from predictor_service.learning.learning_task import LEVELS, LearningTask
from predictor_service.table_methods.analytical_estimate import fit_analytical_model
from predictor_service.table_methods.solo_candidates import UNTUNED, fit_candidates
from predictor_service.table_methods.solo_method import FittedSolo, SoloMethod, inner_folds
from predictor_service.table_methods.untuned_trees import fit_untuned_trees
from tests.support.cases import for_each
from tests.support.few_candidates import few_trees
from tests.support.solo_learning_tasks import joined, memory_problem, step_problem, utilization_problem, without_graphs


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_trees():
        yield


@pytest.fixture(scope="module")
def learning_task() -> LearningTask:
    return memory_problem()


@pytest.fixture(scope="module")
def fitted(learning_task: LearningTask) -> FittedSolo:
    return SoloMethod("architecture").fit(learning_task, seed=0)


def test_unseen_architectures_are_predicted_within_their_own_scatter(fitted: FittedSolo) -> None:
    unseen = memory_problem(seed=1)
    forecast = fitted.predict(unseen)
    error = np.abs(forecast.value / unseen.measured - 1.0)
    assert error.mean() < 0.12
    inside = (forecast.lower_90 <= unseen.measured) & (unseen.measured <= forecast.upper_90)
    assert inside.mean() > 0.75
    assert (unseen.measured <= forecast.upper_99).mean() > 0.9


def test_a_job_larger_than_every_training_row_is_answered_by_its_parts(fitted: FittedSolo) -> None:
    larger = memory_problem(seed=2, size=5.0)
    forecast = fitted.predict(larger)
    assert np.median(np.abs(forecast.value / larger.measured - 1.0)) < 0.25
    assert not forecast.in_domain.all()


def test_bounds_enclose_the_value_and_the_99_percent_bound_is_the_widest(
    fitted: FittedSolo, learning_task: LearningTask
) -> None:
    forecast = fitted.predict(learning_task)
    assert (forecast.lower_90 <= forecast.value).all()
    assert (forecast.value <= forecast.upper_90).all()
    assert (forecast.upper_90 <= forecast.upper_99).all()


def test_predictions_never_look_at_what_was_measured(fitted: FittedSolo, learning_task: LearningTask) -> None:
    hidden = dataclasses.replace(learning_task, measured=np.full(len(learning_task), 1.0))
    assert np.array_equal(fitted.predict(learning_task).value, fitted.predict(hidden).value)


def test_equal_seeds_answer_equally(learning_task: LearningTask) -> None:
    small = learning_task.subset(range(30))
    first, second = (SoloMethod("architecture").fit(small, seed=3).predict(small) for _ in range(2))
    assert np.array_equal(first.value, second.value)
    assert np.array_equal(first.upper_99, second.upper_99)


def test_inner_folds_never_split_an_architecture(learning_task: LearningTask) -> None:
    _, groups, folds = inner_folds(learning_task, "architecture")
    for fold in folds:
        train = frozenset[str]().union(*(groups[row] for row in fold.train))
        assert not any(groups[row] & train for row in fold.test)


def test_choosing_by_leaking_rows_understates_the_error_that_unseen_architectures_have(
    fitted: FittedSolo,
    learning_task: LearningTask,
) -> None:
    unseen, nested = memory_problem(seed=1), fitted
    leaking = SoloMethod("job").fit(learning_task, seed=0)
    outer_mae = float(np.abs(nested.predict(unseen).value - unseen.measured).mean())
    by_name = {name: {result.name: result.inner_mae for result in each.candidates} for name, each in
               (("nested", nested), ("leaking", leaking))}  # fmt: skip
    assert by_name["leaking"]["extra_trees"] < by_name["nested"]["extra_trees"]
    assert abs(by_name["nested"][nested.selected] / outer_mae - 1.0) < 0.5


@pytest.mark.parametrize(("rows", "expected"), [(1, "constant"), (2, "constant"), (5, "blend"), (11, "blend")])
def test_few_rows_are_answered_with_finite_bounds(learning_task: LearningTask, rows: int, expected: str) -> None:
    one_job_each = learning_task.subset(
        [row for row, job in enumerate(learning_task.jobs) if job.batch == learning_task.jobs[0].batch]
    )
    fitted = SoloMethod("family").fit(one_job_each.subset(range(rows)), seed=0)
    forecast = fitted.predict(learning_task)
    assert fitted.selected == expected
    assert np.isfinite(np.stack([forecast.value, forecast.lower_90, forecast.upper_99])).all()


@for_each("level", LEVELS)
def test_inner_folds_hold_out_what_will_be_unseen_where_there_are_three_groups_of_it(level: str) -> None:
    devices = ("NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB", "Tesla T4")
    parts = [step_problem(device, seed=seed) for seed, device in enumerate(devices)]
    used, _, folds = inner_folds(joined(joined(parts[0], parts[1]), parts[2]), level)
    assert used == {"random_pair": "job"}.get(level, level)
    assert len(folds) >= 3


def test_rows_without_a_graph_are_answered_too(learning_task: LearningTask) -> None:
    holed = without_graphs(learning_task, every=5)
    forecast = SoloMethod("architecture").fit(holed, seed=0).predict(holed)
    assert np.isfinite(forecast.value).all()
    assert (forecast.value > 0).all()


def test_the_parts_of_memory_get_the_coefficients_that_made_it() -> None:
    learning_task = memory_problem(architectures=60)
    analytical_model = fit_analytical_model(learning_task)
    error = np.abs(analytical_model.analytical_estimate(learning_task) / learning_task.measured - 1.0)
    assert error.mean() < 0.1
    assert (analytical_model.coefficients >= 0).all()


def test_shares_stay_shares() -> None:
    learning_task = utilization_problem()
    forecast = SoloMethod("architecture").fit(learning_task, seed=0).predict(utilization_problem(seed=5))
    for values in (forecast.value, forecast.lower_90, forecast.upper_99):
        assert values.min() >= 0.0
        assert values.max() <= 1.0


def test_a_device_that_was_never_measured_is_answered_from_its_peaks() -> None:
    learning_task = joined(step_problem("NVIDIA A100-SXM4-40GB"), step_problem("Tesla V100-SXM2-16GB", seed=1))
    unseen = step_problem("Tesla T4", seed=2)
    forecast = SoloMethod("architecture").fit(learning_task, seed=0).predict(unseen)
    assert np.median(np.abs(forecast.value / unseen.measured - 1.0)) < 0.2


def test_one_device_teaches_another_one_by_its_peaks() -> None:
    fitted = SoloMethod("device").fit(step_problem("Tesla K80"), seed=0)
    unseen = step_problem("NVIDIA A100-SXM4-40GB")
    assert UNTUNED not in {result.name for result in fitted.candidates}
    assert np.median(np.abs(fitted.predict(unseen).value / unseen.measured - 1.0)) < 0.3


def test_rows_that_count_another_unit_of_step_teach_nothing() -> None:
    sound = step_problem("Tesla T4", architectures=4)
    odd = step_problem("Tesla T4", architectures=3, seed=1)
    labelled = [dataclasses.replace(job, labels={"step_ms": "not_comparable"}) for job in odd.jobs]
    odd = dataclasses.replace(odd, jobs=tuple(labelled), measured=1e3 * odd.measured)
    unseen = step_problem("Tesla T4", seed=2)
    alone, co_located = (
        SoloMethod("architecture").fit(rows, seed=0).predict(unseen) for rows in (sound, joined(sound, odd))
    )
    assert np.array_equal(alone.value, co_located.value)
    assert np.isfinite(SoloMethod("architecture").fit(odd, seed=0).predict(unseen).value).all()


def test_where_figures_of_graphs_only_name_few_architectures_published_columns_answer_alone() -> None:
    random = np.random.default_rng(7)
    made = utilization_problem(architectures=6, seed=7)
    jobs = [
        dataclasses.replace(
            job, raw={"batch_size": float(job.batch)}, graph={f"figure{place}": random.normal() for place in range(30)}
        )
        for job in made.jobs
    ]
    busy = np.array([{4: 0.2, 16: 0.4, 64: 0.6, 256: 0.8}[job.batch] for job in jobs])
    learning_task = dataclasses.replace(made, jobs=tuple(jobs), measured=busy)
    weights = SoloMethod("architecture").fit(learning_task, seed=0).measured.blend.weights
    assert weights["published_columns"] + weights["untuned_trees"] > 0.9


@pytest.mark.parametrize("rows_each", [3, 6])
def test_a_handful_of_rows_loses_little_to_untuned_trees(rows_each: int) -> None:
    """The measured value follows from a published column; below twelve rows the method used to answer a constant."""
    made = utilization_problem(architectures=3, seed=7)
    batches = [4, 16, 64, 256, 1024, 4096][:rows_each]
    jobs = [
        dataclasses.replace(
            made.jobs[4 * place], job_key=f"{place}-{batch}", batch=batch, micro_batch_size=batch, graph={}
        )
        for place in range(3)
        for batch in batches
    ]
    measured = np.array([min(0.95, 0.1 * np.log(job.batch)) for job in jobs])
    learning_task = dataclasses.replace(
        made.subset([0] * len(jobs)), jobs=tuple(jobs), measured=measured, row_ids=tuple(job.job_key for job in jobs)
    )
    train, test = learning_task.subset(range(2 * rows_each)), learning_task.subset(range(2 * rows_each, 3 * rows_each))
    ours = SoloMethod("architecture").fit(train, seed=0).predict(test).value
    theirs = fit_untuned_trees(train, "architecture", seed=0).predict(test)
    spread = np.abs(test.measured - np.median(train.measured)).mean()
    assert np.abs(ours - test.measured).mean() <= np.abs(theirs - test.measured).mean() + 0.3 * spread


def test_rows_far_off_do_not_pull_predictions_near_them() -> None:
    random = np.random.default_rng(11)
    table = random.uniform(0.0, 1.0, (400, 2))
    expected = 0.1 * table[:, 0]
    off = random.uniform(0.0, 1.0, 400) < 0.05
    models = fit_candidates(table, expected + np.where(off, 2.0, 0.0), 0, (), ("extra_trees", "steady_trees"))
    unseen = random.uniform(0.0, 1.0, (400, 2))
    errors = {name: float(np.abs(model.predict(unseen) - 0.1 * unseen[:, 0]).mean()) for name, model in models.items()}
    assert errors["steady_trees"] < 0.05 < errors["extra_trees"]


@pytest.mark.endurance
def test_few_groups_choose_no_promise_and_the_promise_of_many_holds(fitted: FittedSolo) -> None:
    assert fitted.promise is fitted.sound.blend
    unseen = memory_problem(architectures=120, seed=1)
    many = SoloMethod("architecture").fit(memory_problem(architectures=120), seed=0)
    assert many.promise is not many.sound.blend
    assert (unseen.measured <= many.predict(unseen).upper_99).mean() > 0.96
