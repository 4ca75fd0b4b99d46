"""From measured rows to a model that may be served: score, choose, refit, convert, prove, calibrate.

`evaluate --model fresh` and `retrain` call `fit_rows`; what it returns answers as the service does once it is stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cotenant.job_settings import PRECISIONS
from predictor_service.features.job_features import FEATURE_INDEX
from predictor_service.fitting.answers import describe_choice, forecast_known, list_results
from predictor_service.fitting.competition import incumbent_of, list_candidates
from predictor_service.fitting.conversion import NotLearnable, golden_of, prove, store_spread
from predictor_service.fitting.familiar_networks import FamiliarRows, learn_familiar
from predictor_service.fitting.known_rows import read_known_rows
from predictor_service.fitting.near_errors import CONFIDENCE, errors_at_settings, learn_near
from predictor_service.fitting.step_bases import choose_basis, unseen_step_ms
from predictor_service.learning.learning_task import CandidateResult, Forecast, LearningTask
from predictor_service.registry.manifest import (
    OF_DEVICE,
    NearRecord,
    ScoredCandidate,
    TargetRecord,
)
from predictor_service.registry.served_version import ServedTarget, load_target
from predictor_service.registry.spread_record import GoldenVectors, SpreadRecord
from predictor_service.regressors.candidates import BOUND_PARTNERS, CandidateBuilder
from predictor_service.regressors.interface import FeatureArray, FloatArray
from predictor_service.selection.conformal import ConformalBounds, calibrate, calibrate_groups
from predictor_service.selection.domain import learn_domain
from predictor_service.selection.folds import GROUPS_MIN, Fold, grouped_folds
from predictor_service.selection.incumbent import Incumbent
from predictor_service.selection.local_bounds import (
    BRIEF,
    COMPACT,
    THOROUGH,
    THOROUGH_SMALL,
    SpreadSearch,
    learn_bounds,
)
from predictor_service.selection.operator_mix import learn_operator_mix
from predictor_service.selection.scoring import (
    CandidateScore,
    choose_unseen,
    predict_unchosen,
    put_first,
    score_candidates,
)
from predictor_service.selection.targets import MEMORY, SLOWDOWN, Target

ROWS_MIN = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittingTask:
    """What is to be learned.

    Attributes:
        target: Quantity and scale.
        device: Device type, for names and messages.
        columns: Shape (rows, columns).
        measured: In the target's unit, shape (rows,).
        analytical_estimate: In the target's unit, shape (rows,).
        groups: Families of each row.
        seed: Of every regressor.
        features: Whole vectors of jobs alone, shape (rows, len(FEATURES)); None = nearness of jobs is not needed.
        all_types_ms: Of step times, what the model of all device types says that has not seen the row's family, shape
            (rows,): the other basis that is tried; None = there is none.
        is_of_all_types: Whether `analytical_estimate` is that.
        is_public: Whether others measured the rows, and the models come with the program: small ones compete.
    """

    target: Target
    device: str
    columns: FeatureArray
    measured: FloatArray
    analytical_estimate: FloatArray
    groups: Sequence[frozenset[str]]
    seed: int
    features: FloatArray | None = None
    all_types_ms: FloatArray | None = None
    is_of_all_types: bool = False
    is_public: bool = False

    @property
    def search(self) -> SpreadSearch:
        """How spreads of errors are learned."""
        return COMPACT if self.is_public else BRIEF


def task_of(learning_task: LearningTask, level: str, seed: int, *, is_public: bool = False) -> FittingTask:
    """What is to be learned from rows that `known_rows.why_unlearnable` has no reason against.

    Args:
        learning_task: Rows of one device type, in any order: what is learned follows from their content.
        level: What will be unseen, one of `learning_task.LEVELS`.
        seed: Of every regressor.
        is_public: See `FittingTask`.
    """
    rows = read_known_rows(learning_task)
    return FittingTask(
        target=learning_task.target,
        device=learning_task.device,
        columns=rows.columns,
        measured=learning_task.measured,
        analytical_estimate=rows.analytical_estimate,
        groups=learning_task.groups(level),
        seed=seed,
        features=rows.features,
        all_types_ms=unseen_step_ms(learning_task),
        is_public=is_public,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedTarget:
    """A target that was learned.

    Attributes:
        task: What was asked for.
        record: For the manifest.
        files: ONNX files by name, as the record names them.
        score: How the winner did on held-out groups, with the models of each fold.
        folds: The folds.
        errors: Absolute ones of the held-out rows of `score`, which neither the models nor the choice among them had
            seen, in the target's own scale.
    """

    task: FittingTask
    record: TargetRecord
    files: Mapping[str, bytes]
    score: CandidateScore
    folds: tuple[Fold, ...]
    errors: FloatArray

    @cached_property
    def served(self) -> ServedTarget:
        """The same target as a service has it once it has loaded the files."""
        return load_target(self.record, self.files)

    @property
    def selected(self) -> str:
        """Name of the winner."""
        return describe_choice(self.record)

    @property
    def candidates(self) -> Sequence[CandidateResult]:
        """Scored table, best first."""
        return list_results(self.record)

    def predict(self, learning_task: LearningTask) -> Forecast:
        """Answers as the service does; see `learning_task.FittedMethod`."""
        return forecast_known(self.served, learning_task)

    def held_out_values(self) -> FloatArray:
        """Predictions in the target's unit for every row by models that have not seen its groups, shape (rows,)."""
        held_out, task = self.score.held_out, self.task
        count = np.bincount(held_out.row, minlength=len(task.measured))
        total = np.bincount(held_out.row, weights=held_out.value, minlength=len(task.measured))
        return task.target.decode(total / np.maximum(count, 1), task.analytical_estimate)


def fit_rows(learning_task: LearningTask, level: str, seed: int, *, is_public: bool = False) -> FittedTarget:
    """Learns one target from measured rows; see `task_of` for the arguments and `fit_target` for what is raised."""
    return fit_target(task_of(learning_task.in_content_order(), level, seed, is_public=is_public))


def fit_target(task: FittingTask) -> FittedTarget:
    """Learns one target, relative to all device types unless its own device's peaks err less beyond chance.

    Args:
        task: Rows and their groups.

    Returns:
        The winner, fitted on all rows, as an ONNX file that agrees with its original.

    Raises:
        NotLearnable: Too few rows or groups, or no candidate converts.
    """
    fitted = _fit_relative(task)
    if task.all_types_ms is None:
        return fitted
    # Of a type with few or odd rows all other types together know more than its own peaks.
    other = _fit_relative(replace(task, analytical_estimate=task.all_types_ms, is_of_all_types=True))
    groups = [task.groups[row] for row in fitted.score.held_out.row.tolist()]
    basis = choose_basis(of_device=fitted.errors, of_all_types=other.errors, groups=groups)
    best = fitted if basis.name == OF_DEVICE else other
    return replace(best, record=replace(best.record, basis=basis))


def _fit_relative(task: FittingTask) -> FittedTarget:
    """Learns one target relative to its basis; see `fit_target`."""
    folds = grouped_folds(task.groups)
    families = len(frozenset[str]().union(*task.groups)) if task.groups else 0
    if len(task.measured) < ROWS_MIN or not folds:
        few = f"{len(task.measured)} rows of {families} families"
        raise NotLearnable(f"{few} are too few, {ROWS_MIN} of {GROUPS_MIN} the least")
    encoded = task.target.encode(task.measured, task.analytical_estimate)
    incumbent = _incumbent(task)
    scored = score_candidates(_list_candidates(task), task.columns, encoded, folds, task.seed)
    scores = put_first(scored, encoded, incumbent)
    refusals: dict[str, str] = {}
    for score in scores:
        try:
            content, golden = _convert(score.name, task, encoded)
        except NotLearnable as refusal:
            refusals[score.name] = str(refusal)
            continue
        served = [each for each in scores if each.name not in refusals]
        unchosen = predict_unchosen(served, encoded, incumbent)
        residuals = _residuals(task, encoded, score, unchosen)
        table, error_ratio = _table(task, scored, refusals), _nested_error_ratio(task, score, unchosen)
        record = _record(task, score, content, golden, table=table, residuals=residuals, mape_ratio=error_ratio)
        files, spread = {record.file_name: content}, _spread(task, score, residuals)
        if spread is not None:
            record = replace(record, spread=spread[0])
            files[spread[0].file_name] = spread[1]
        record = replace(record, near=_near(task, served, record, files))
        record = _with_familiar(task, record, encoded, files)
        errors = np.abs(encoded[score.held_out.row] - unchosen)
        return FittedTarget(task=task, record=record, files=files, score=score, folds=tuple(folds), errors=errors)
    raise NotLearnable(f"no candidate can be served: {refusals}")


def _list_candidates(task: FittingTask, served_rows: int | None = None) -> Mapping[str, CandidateBuilder]:
    return list_candidates(
        task.target,
        task.device,
        is_public=task.is_public,
        is_of_all_types=task.is_of_all_types,
        served_rows=served_rows,
    )


def _incumbent(task: FittingTask) -> Incumbent | None:
    return incumbent_of(task.target, task.device, task.groups, is_of_all_types=task.is_of_all_types)


def _residuals(task: FittingTask, encoded: FloatArray, score: CandidateScore, unchosen: FloatArray) -> FloatArray:
    """Errors on rows that neither the models nor, of jobs alone, the choice among them had seen.

    Slowdowns keep the winner's: its bounds have to be those of the models that `training` asks with predicted inputs.
    """
    value = score.held_out.value if task.target is SLOWDOWN else unchosen
    return np.asarray(encoded[score.held_out.row] - value)


def _nested_error_ratio(task: FittingTask, score: CandidateScore, unchosen: FloatArray) -> float:
    """Mean relative error on rows that neither the models nor the choice among them had seen."""
    rows = score.held_out.row
    measured, target = task.measured[rows], task.target
    error = np.abs(measured - target.decode(unchosen, task.analytical_estimate[rows]))
    return round(float(np.mean(error / np.maximum(np.abs(target.relative_to(measured)), 1e-9))), 9)


def _calibrate(task: FittingTask, score: CandidateScore, residuals: FloatArray) -> ConformalBounds:
    """Every family has one vote; of pairs, whose two families are seldom both new, every row."""
    if task.target is SLOWDOWN:
        return calibrate(residuals, _group_count(task))
    return calibrate_groups(residuals, [task.groups[row] for row in score.held_out.row.tolist()])


def _convert(name: str, task: FittingTask, encoded: FloatArray) -> tuple[bytes, GoldenVectors]:
    """Refits on all rows and converts; the converted model must answer as the original does."""
    model = _list_candidates(task, len(encoded))[name](task.seed).fit(task.columns, encoded)
    golden = golden_of(task.columns, model.predict)
    return prove(model.to_onnx, golden, name), golden


def _spread(task: FittingTask, score: CandidateScore, residuals: FloatArray) -> tuple[SpreadRecord, bytes] | None:
    """What held-out errors teach of their size; None where that is no more than one quantile.

    Slowdowns keep one: a question about pairs asks for forty thousand widths, and measured pairs narrow them anyway.
    """
    if task.target is SLOWDOWN:
        return None
    rows = score.held_out.row
    columns, groups = task.columns[rows], [task.groups[row] for row in rows.tolist()]
    local = learn_bounds(
        columns.astype(np.float64),
        residuals,
        groups,
        task.seed,
        one_vote_per_group=True,
        search=task.search,
    )
    return store_spread(local, columns, _file_name(task, "spread.onnx"))


def _near(
    task: FittingTask, scores: Sequence[CandidateScore], record: TargetRecord, files: Mapping[str, bytes]
) -> NearRecord | None:
    """Widths of jobs whose graph was measured at other settings, next to those of unseen jobs as served."""
    if task.features is None:
        return None
    bounded = load_target(record, files)
    encoded, held_out = task.target.encode(task.measured, task.analytical_estimate), scores[0].held_out
    places = choose_unseen(scores, encoded, _incumbent(task))
    chosen = np.empty(len(encoded), dtype=object)
    chosen[held_out.row] = [scores[best].name for best in np.array(places)[held_out.fold]]
    errors = errors_at_settings(
        _list_candidates(task), chosen.tolist(), task.columns, encoded, features=task.features, seed=task.seed
    )
    return learn_near(
        errors, task.features, task.groups, bounded.novel_half_width(task.columns, task.analytical_estimate, CONFIDENCE)
    )


def _with_familiar(
    task: FittingTask, record: TargetRecord, encoded: FloatArray, files: dict[str, bytes]
) -> TargetRecord:
    """The record with what tells networks of known families from others, and the errors of the former."""
    mix = None if task.features is None else learn_operator_mix(task.features, task.groups)
    if task.features is None or mix is None:
        return record
    if task.is_public and task.target is not MEMORY:  # no other target has a bound that answers state
        return replace(record, operator_mix=mix)
    builder, name = _list_candidates(task)[record.winner], _file_name(task, "familiar.onnx")
    names = task.target.bound_columns
    rows = FamiliarRows(columns=task.columns, encoded=encoded, features=task.features, bound_names=names, mix=mix)
    partners = {each: partner for each, partner in BOUND_PARTNERS.items() if names or each != record.winner}
    search = THOROUGH_SMALL if task.is_public else THOROUGH
    found = learn_familiar(rows, builder, partners, seed=task.seed, file_name=name, search=search)
    if found is None:
        return replace(record, operator_mix=mix)
    files |= found[1]
    return replace(record, operator_mix=mix, familiar=found[0])


def _table(
    task: FittingTask, scores: Sequence[CandidateScore], refusals: dict[str, str]
) -> tuple[ScoredCandidate, ...]:
    return tuple(
        ScoredCandidate(
            name=score.name,
            error_mean=round(score.error_mean, 9),
            error_mean_unit=round(float(np.mean(np.abs(_residuals_in_unit(task, score)))), 9),
            refusal=refusals.get(score.name, ""),
        )
        for score in scores
    )


def _residuals_in_unit(task: FittingTask, score: CandidateScore) -> FloatArray:
    rows = score.held_out.row
    return task.measured[rows] - task.target.decode(score.held_out.value, task.analytical_estimate[rows])


def _record(
    task: FittingTask,
    score: CandidateScore,
    content: bytes,
    golden: GoldenVectors,
    *,
    table: tuple[ScoredCandidate, ...],
    residuals: FloatArray,
    mape_ratio: float,
) -> TargetRecord:
    encoded = task.target.encode(task.measured, task.analytical_estimate)
    return TargetRecord(
        target=task.target.name,
        columns=task.target.columns,
        winner=score.name,
        candidates=table,
        file_name=_file_name(task, "onnx"),
        file_sha256=hashlib.sha256(content).hexdigest(),
        rows=len(task.measured),
        groups=_group_count(task),
        mape_ratio=mape_ratio,
        bounds=_calibrate(task, score, residuals),
        graph_bounds=None,
        domain=learn_domain(task.columns, task.groups),
        golden=golden,
        value_low=float(encoded.min()),
        value_high=float(encoded.max()),
        precisions=_list_precisions(task),
        is_public=task.is_public,
    )


def _list_precisions(task: FittingTask) -> tuple[str, ...]:
    """Those that any job alone had: models of memory do not see them."""
    if task.features is None:
        return ()
    return tuple(name for name in PRECISIONS if task.features[:, FEATURE_INDEX[f"precision_is_{name}"]].any())


def _group_count(task: FittingTask) -> int:
    return len(frozenset[str]().union(*task.groups))


def _file_name(task: FittingTask, ending: str) -> str:
    safe_device = "".join(letter if letter.isalnum() else "_" for letter in task.device)
    return f"{safe_device}.{task.target.name}.{ending}"
