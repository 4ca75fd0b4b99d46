"""The method for slowdowns: what it chooses, what it must not look at, and victims co-located with several jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.slowdown_aip import AdaptivePrediction
from predictor_service.errors import TrainingDataError
from predictor_service.evaluation.scoring import Round, plan_rounds
from predictor_service.features.slowdown_composition import COMPOSITIONS, compose_slowdowns
from predictor_service.features.time_slicing import exceed_sum
from predictor_service.learning.learning_task import JobFacts, LearningTask, SoloFigures
from predictor_service.table_methods import slowdown_candidates, slowdown_method, slowdown_process
from predictor_service.table_methods.slowdown_folds import inner_folds, observe_pairs
from predictor_service.table_methods.slowdown_method import SlowdownMethod
from predictor_service.table_methods.untuned_trees import fit_untuned_trees
from tests.support.cases import for_each
from tests.support.few_candidates import few_trees
from tests.support.time_slicing_jobs import turn_taking_problem


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_trees():
        yield


def _first_round(learning_task: LearningTask, level: str) -> tuple[LearningTask, LearningTask]:
    part: Round = plan_rounds(learning_task, level, 4, 0)[0]
    assert part.train is not None
    return part.train, part.test


def _hidden(learning_task: LearningTask) -> LearningTask:
    return dataclasses.replace(learning_task, measured=np.full(len(learning_task), np.nan))


def test_an_unseen_family_is_predicted_from_what_its_jobs_do_alone() -> None:
    train, test = _first_round(turn_taking_problem(jobs=12, families=4), "family")
    fitted = SlowdownMethod("family").fit(train, seed=0)
    forecast = fitted.predict(_hidden(test))
    by_mean = np.abs(train.measured.mean() - test.measured).mean()
    assert np.abs(forecast.value - test.measured).mean() < 0.3 * by_mean
    assert (forecast.lower_90 <= forecast.value).all()
    assert (forecast.value <= forecast.upper_90).all()
    assert fitted.selected == fitted.candidates[0].name == "blend"


def test_shuffled_measurements_teach_nothing() -> None:
    learning_task = turn_taking_problem(jobs=10)
    shuffled = dataclasses.replace(learning_task, measured=np.random.default_rng(3).permutation(learning_task.measured))
    train, test = _first_round(shuffled, "random_pair")
    fitted = SlowdownMethod("random_pair").fit(train, seed=0)
    error = np.abs(fitted.predict(_hidden(test)).value - test.measured).mean()
    assert error > 0.8 * np.abs(train.measured.mean() - test.measured).mean()


def test_equal_rows_and_seeds_give_equal_answers() -> None:
    learning_task = turn_taking_problem(jobs=6)
    first, second = (SlowdownMethod("job").fit(learning_task, seed=5).predict(_hidden(learning_task)) for _ in range(2))
    assert np.array_equal(first.value, second.value)


def test_names_of_jobs_are_no_feature() -> None:
    learning_task = turn_taking_problem(jobs=6)

    def renamed(job: JobFacts) -> JobFacts:
        return dataclasses.replace(job, job_key=f"{999 - int(job.job_key[3:])}")

    other_names = dataclasses.replace(
        learning_task,
        jobs=tuple(renamed(job) for job in learning_task.jobs),
        others=tuple((renamed(others[0]),) for others in learning_task.others),
    )
    values = [
        SlowdownMethod("family").fit(each, 0).predict(_hidden(each)).value for each in (learning_task, other_names)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-3)


def _with_two_jobs(learning_task: LearningTask, share_mode: str, utilization_ratio: float) -> LearningTask:
    """The first victim co-located with two jobs."""

    def changed(job: JobFacts) -> JobFacts:
        solo = dataclasses.replace(job.solo, utilization_ratio=utilization_ratio)
        return dataclasses.replace(job, labels={**job.labels, "share_mode": share_mode}, solo=solo)

    row = _hidden(learning_task.subset([1]))
    others = (changed(learning_task.others[1][0]), changed(learning_task.others[2][0]))
    return dataclasses.replace(row, jobs=(changed(row.jobs[0]),), others=(others,))


def test_the_slowdown_by_two_co_located_jobs_is_the_sum_of_both() -> None:
    learning_task = turn_taking_problem(jobs=6)
    fitted = SlowdownMethod("random_pair").fit(learning_task, seed=0)
    alone = fitted.predict(_hidden(learning_task.subset([1, 2])))
    assert fitted.predict(_with_two_jobs(learning_task, "mps", 1.0)).value == pytest.approx([alone.value.sum()])


def test_turns_get_longer_with_three_jobs_only_where_jobs_take_turns_and_wait() -> None:
    learning_task = turn_taking_problem(jobs=6)
    fitted = SlowdownMethod("random_pair").fit(learning_task, seed=0)
    value = {
        (mode, share): float(fitted.predict(_with_two_jobs(learning_task, mode, share)).value[0])
        for mode in ("mps", "time_slicing")
        for share in (0.6, 1.0)
    }
    assert value["time_slicing", 1.0] == pytest.approx(value["mps", 1.0])
    assert value["time_slicing", 0.6] - value["mps", 0.6] == pytest.approx(float(exceed_sum(np.full(3, 0.6))[0]))


def test_rows_without_a_single_pair_are_refused_with_a_remedy() -> None:
    learning_task = turn_taking_problem(jobs=4)
    multiway = dataclasses.replace(learning_task, others=tuple((other, other) for (other,) in learning_task.others))
    with pytest.raises(TrainingDataError, match="exactly one job co-located"):
        SlowdownMethod("family").fit(multiway, seed=0)


def test_rows_of_one_pair_are_answered_by_their_mean() -> None:
    learning_task = turn_taking_problem(jobs=2).subset([0])
    fitted = SlowdownMethod("family").fit(learning_task, seed=0)
    assert fitted.selected == "mean"
    assert fitted.predict(_hidden(learning_task)).value == pytest.approx(learning_task.measured.mean())


def test_a_handful_of_pairs_loses_little_to_untuned_trees() -> None:
    """A published figure of the other job decides the slowdown; below twelve rows the mean used to answer."""
    made = turn_taking_problem(jobs=6)
    rows = made.subset([row for row, job in enumerate(made.jobs) if job.job_key == made.jobs[0].job_key] * 2)
    others = tuple(
        (dataclasses.replace(other, raw={"harm": float(row % 2)}),) for row, (other,) in enumerate(rows.others)
    )
    learning_task = dataclasses.replace(
        rows, others=others, measured=np.array([0.1 if other.raw["harm"] < 0.5 else 2.0 for (other,) in others])
    ).subset(range(9))
    unseen = dataclasses.replace(rows, others=others)
    expected = np.array([0.1 if other.raw["harm"] < 0.5 else 2.0 for (other,) in others])
    fitted = SlowdownMethod("random_pair").fit(learning_task, seed=0)
    theirs = fit_untuned_trees(learning_task, "random_pair", seed=0).predict(unseen)
    ours = fitted.predict(_hidden(unseen)).value
    assert np.abs(ours - expected).mean() <= np.abs(theirs - expected).mean() + 0.1


def test_every_candidate_but_the_processes_learns_from_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thinning for the processes once took two thirds of the rows from trees too: these lost to trees on all."""
    learning_task = turn_taking_problem(jobs=30)
    few = {name: slowdown_candidates.CANDIDATES[name] for name in ("mean", "untuned_trees")}
    monkeypatch.setattr(slowdown_method, "list_candidates", lambda training_split: few)
    fitted = SlowdownMethod("random_pair").fit(learning_task, seed=0)
    theirs = fit_untuned_trees(learning_task, "random_pair", seed=0)
    assert len(learning_task) > slowdown_process.ROWS_MAX
    assert np.array_equal(fitted.predict_each(learning_task)["untuned_trees"], theirs.predict(learning_task))


def test_intervals_are_wider_where_nothing_of_what_will_be_unseen_was_held_out() -> None:
    """One device type says nothing of how far another one's slowdowns may be from its own."""
    train, test = _first_round(turn_taking_problem(jobs=8, families=4), "family")
    known, strange = (SlowdownMethod(level).fit(train, seed=0).predict(_hidden(test)) for level in ("family", "device"))
    spread = np.std(np.log1p(train.measured))
    widths = [np.log1p(each.upper_90) - np.log1p(each.lower_90) for each in (known, strange)]
    assert (widths[1] > widths[0] + 2.0 * spread).all()
    assert (strange.upper_99 > known.upper_99).all()


def test_the_scored_table_says_how_many_rows_were_too_many_for_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdown_process, "ROWS_MAX", 30)
    few = {name: slowdown_candidates.CANDIDATES[name] for name in ("mean", "additive_time")}
    monkeypatch.setattr(slowdown_method, "list_candidates", lambda training_split: few)
    learning_task = turn_taking_problem(jobs=6)
    lines = {line.name: line.rows_left_out for line in SlowdownMethod("random_pair").fit(learning_task, 0).candidates}
    assert lines == {"blend": 6, "mean": 0, "additive_time": 6}


def test_more_rows_than_any_candidate_takes_are_thinned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowdown_method, "ROWS_MAX", 20)
    seen: list[int] = []

    def note(training_split: slowdown_candidates.TrainingSplit) -> slowdown_candidates.FittedCandidate:
        seen.append(len(training_split.learning_task))
        return slowdown_candidates.learn_mean(training_split)

    monkeypatch.setattr(slowdown_method, "list_candidates", lambda training_split: {"mean": note})
    SlowdownMethod("random_pair").fit(turn_taking_problem(jobs=6), seed=0)
    assert seen == [20]


def _without_figures(job: JobFacts) -> JobFacts:
    return dataclasses.replace(job, solo=SoloFigures(), batch=1, micro_batch_size=1)


def _odd_problem(kind: str) -> LearningTask:
    learning_task = turn_taking_problem(jobs=5)
    if kind == "nothing known of the jobs":
        return dataclasses.replace(
            learning_task,
            jobs=tuple(_without_figures(job) for job in learning_task.jobs),
            others=tuple((_without_figures(other),) for (other,) in learning_task.others),
        )
    if kind == "one pair over and over":
        return learning_task.subset([1] * 20)
    factor = {"all equal": 0.0, "one wild value": 1.0}[kind]
    measured = factor * learning_task.measured
    measured[3] = 1e4 * factor
    return dataclasses.replace(learning_task, measured=measured)


@for_each("method", [SlowdownMethod, AdaptivePrediction])
@for_each("kind", ["nothing known of the jobs", "one pair over and over", "all equal", "one wild value"])
def test_odd_rows_are_answered_with_finite_numbers(method: type, kind: str) -> None:
    forecast = method("family").fit(_odd_problem(kind), 0).predict(_hidden(turn_taking_problem(jobs=3)))
    for name in ("value", "lower_90", "upper_90", "upper_99"):
        assert np.isfinite(getattr(forecast, name)).all()


def test_aip_chooses_among_the_four_of_the_paper() -> None:
    train, test = _first_round(turn_taking_problem(jobs=8), "random_pair")
    fitted = AdaptivePrediction("random_pair").fit(train, 0)
    names = {"linear_regression", "support_vector_regression", "decision_tree", "nearest_neighbours"}
    assert {candidate.name for candidate in fitted.candidates} == names
    assert fitted.selected == min(fitted.candidates, key=lambda candidate: candidate.inner_mae).name
    assert np.array_equal(fitted.predict(_hidden(test)).value, fitted.predict_each(_hidden(test))[fitted.selected])


@pytest.mark.parametrize("level", ["random_pair", "job", "architecture", "family"])
def test_no_group_is_on_both_sides_of_an_inner_fold(level: str) -> None:
    learning_task = turn_taking_problem(jobs=8)
    used, folds = inner_folds(learning_task, level, shots=0, seed=1)
    groups = learning_task.groups(used)
    assert used == level
    for fold in folds:
        trained = frozenset[str]().union(*(groups[row] for row in fold.train))
        tested = [groups[row] for row in fold.test]
        assert not any(names <= trained for names in tested)
        assert len(fold.train) + len(fold.test) == len(learning_task)


def test_one_family_is_split_by_something_finer() -> None:
    learning_task = turn_taking_problem(jobs=6, families=1)
    assert inner_folds(learning_task, "family", shots=0, seed=0)[0] == "architecture"


def test_every_new_job_is_observed_with_as_many_known_jobs_as_requested() -> None:
    learning_task = turn_taking_problem(jobs=8, families=4)
    new_rows = np.flatnonzero([any("family0" in name for name in names) for names in learning_task.groups("family")])
    known = {job.job_key for job in learning_task.jobs if job.family != "family0"}
    observed = observe_pairs(learning_task, new_rows, known, shots=3, seed=0)
    partners: dict[str, set[str]] = {}
    for row in observed:
        keys = {learning_task.jobs[row].job_key, learning_task.others[row][0].job_key}
        (new,) = keys - known
        partners.setdefault(new, set()).update(keys & known)
    assert set(observed) <= set(new_rows)
    assert {len(names) for names in partners.values()} == {3}
    assert set(partners) == {job.job_key for job in learning_task.jobs} - known


def test_slowdowns_by_several_jobs_are_composed() -> None:
    slowdowns, rows = np.array([0.5, 1.0, 0.25]), np.array([0, 0, 2])
    assert compose_slowdowns(slowdowns, rows, 3).tolist() == [1.5, 0.0, 0.25]
    assert compose_slowdowns(slowdowns, rows, 3, "product").tolist() == [2.0, 0.0, 0.25]
    assert compose_slowdowns(slowdowns, rows, 3, "worst").tolist() == [1.0, 0.0, 0.25]


@pytest.mark.parametrize("how", COMPOSITIONS)
def test_one_co_located_job_is_composed_to_itself(how: str) -> None:
    assert compose_slowdowns(np.array([0.3, -0.1]), np.array([0, 1]), 2, how) == pytest.approx([0.3, -0.1])
