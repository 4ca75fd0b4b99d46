"""The report of an evaluation: numbers for programs, a table for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from predictor_service.evaluation.scoring import HeldOutPredictions, ScoredCandidate
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.metrics import RowErrors, measure_forecast, measure_points
from predictor_service.learning.resampling import Interval, bootstrap, bootstrap_ratios, divide_metrics

SCHEMA: Final = "cotenant.evaluate/1"
SIZE_DECILE: Final = "size_decile"
_GROUPS_SHOWN: Final = 10
_IN_THE_UNIT: Final = frozenset({"mae", "rmse", "bias"})
_RATIO_METRICS: Final = ("mae", "rmse", "mape_ratio", "rmsle")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScore:
    """How one held-out group came out.

    Attributes:
        group: Its name.
        rows: Predictions that it is part of.
        metrics: By name; None where the rows have no value of one.
    """

    group: str
    rows: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineScore:
    """How a baseline came out, and ours divided by it with its 95 % interval."""

    metrics: Mapping[str, float | None]
    ratios: Mapping[str, float | None]
    ratio_intervals: Mapping[str, Interval | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Everything that is reported; the fields are those of the JSON form."""

    target: str
    unit: str
    device: str
    fold_rule: str
    groups: int
    rows: int
    excluded: Mapping[str, int]
    selected: str
    candidates: Sequence[ScoredCandidate]
    metrics: Mapping[str, float | None]
    intervals: Mapping[str, Interval | None]
    baselines: Mapping[str, BaselineScore | None]
    per_group: Sequence[GroupScore]


def evaluate_predictions(
    learning_task: LearningTask,
    predictions: HeldOutPredictions,
    *,
    fold_rule: str,
    level: str,
    group_by: str,
    excluded: Mapping[str, int],
    seed: int,
) -> Evaluation:
    """Scores predictions.

    Args:
        learning_task: All scored rows.
        predictions: For these rows.
        fold_rule: How they were held out.
        level: Groups that are resampled for the intervals.
        group_by: Groups that are reported one by one: a level or `SIZE_DECILE`.
        excluded: Rows left out by reason.
        seed: Of the resampling.
    """
    rows = predictions.rows
    measured = learning_task.measured[rows]
    errors = measure_forecast(learning_task.target, predictions.forecast, measured)
    row_groups = learning_task.groups(level)
    groups = [row_groups[row] for row in rows]
    metrics = errors.as_mapping()
    baselines: dict[str, BaselineScore | None] = {}
    for name, values in predictions.baselines.items():
        if values is None:
            baselines[name] = None
            continue
        theirs = measure_points(learning_task.target, values, measured)
        scored = theirs.as_mapping()
        baselines[name] = BaselineScore(
            metrics=scored,
            ratios=divide_metrics(metrics, scored),
            ratio_intervals=bootstrap_ratios(errors, theirs, groups, seed),
        )
    return Evaluation(
        target=learning_task.target.quantity,
        unit=learning_task.target.unit,
        device=learning_task.device,
        fold_rule=fold_rule,
        groups=len(frozenset[str]().union(*groups)),
        rows=len(set(rows.tolist())),
        excluded=excluded,
        selected=predictions.selected,
        candidates=predictions.candidates,
        metrics=metrics,
        intervals=bootstrap(errors, groups, seed),
        baselines=baselines,
        per_group=_score_groups(learning_task, predictions, errors, group_by),
    )


def _score_groups(
    learning_task: LearningTask, predictions: HeldOutPredictions, errors: RowErrors, group_by: str
) -> list[GroupScore]:
    members = _size_deciles(learning_task) if group_by == SIZE_DECILE else learning_task.groups(group_by)
    of_prediction = [members[row] for row in predictions.rows]
    scores = []
    for name in sorted(frozenset[str]().union(*of_prediction)):
        chosen = np.array([name in group for group in of_prediction])
        part = RowErrors(errors.names, errors.values[chosen])
        scores.append(GroupScore(group=name, rows=int(chosen.sum()), metrics=part.as_mapping()))
    return scores


def _size_deciles(learning_task: LearningTask) -> list[frozenset[str]]:
    """Tenths of the rows by measured value; equal values share the lower tenth."""
    edges = np.quantile(learning_task.measured, np.linspace(0.1, 0.9, 9))
    places = np.searchsorted(edges, learning_task.measured)
    return [frozenset({f"decile {place + 1:02d}"}) for place in places]


def as_json(evaluation: Evaluation) -> str:
    """Writes the report with stable keys; `null` where a number is undefined."""
    content: dict[str, Any] = {
        "schema": SCHEMA,
        **{
            name: getattr(evaluation, name)
            for name in ("target", "unit", "device", "fold_rule", "groups", "rows", "excluded", "selected")
        },
        "candidates": [
            {
                "name": line.name,
                "inner_mae": line.inner_mae,
                "outer_mae": line.outer_mae,
                "rows_left_out": line.rows_left_out,
            }
            for line in evaluation.candidates
        ],
        "metrics": evaluation.metrics,
        "ci95": evaluation.intervals,
        "baselines": {name: _baseline(score) for name, score in evaluation.baselines.items()},
        "per_group": [{"group": score.group, "rows": score.rows, **score.metrics} for score in evaluation.per_group],
    }
    return json.dumps(_rounded(content), indent=1)


def _baseline(score: BaselineScore | None) -> dict[str, Any]:
    """An empty object states that the baseline does not apply to these rows."""
    if score is None:
        return {}
    return {
        **score.metrics,
        "ours_over_baseline": {name: score.ratios[name] for name in _RATIO_METRICS},
        "ours_over_baseline_ci95": {name: score.ratio_intervals[name] for name in _RATIO_METRICS},
    }


def _rounded(value: Any) -> Any:  # noqa: ANN401 (a JSON value)
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list | tuple) else value


def as_table(evaluation: Evaluation) -> str:
    """Writes the report for people, below 100 columns."""
    return "\n".join(_lines(evaluation))


def _lines(evaluation: Evaluation) -> Iterator[str]:
    yield (
        f"{evaluation.target} ({evaluation.unit}) on {evaluation.device}: {evaluation.rows:,} rows, "
        f"{evaluation.groups} groups, fold rule {evaluation.fold_rule}"
    )
    yield from (f"  left out: {count:,} rows, {reason}" for reason, count in evaluation.excluded.items())
    yield f"selected: {evaluation.selected}"
    yield ""
    yield f"{'metric':<28}{'value':>12}   95 % interval over groups"
    for name, value in evaluation.metrics.items():
        unit = f" ({evaluation.unit})" if name in _IN_THE_UNIT else ""
        yield f"{name + unit:<28}{_number(value)}   {_range(evaluation.intervals.get(name))}"
    yield ""
    mae = f"mae ({evaluation.unit})"
    yield f"{'baseline':<20}{mae:>12}{'mape_ratio':>12}{'ours / mae':>12}   95 % interval"
    for name, score in evaluation.baselines.items():
        if score is None:
            yield f"{name:<20}{'does not apply to these rows':>36}"
            continue
        cells = (score.metrics["mae"], score.metrics["mape_ratio"], score.ratios["mae"])
        yield f"{name:<20}{''.join(_number(cell) for cell in cells)}   {_range(score.ratio_intervals['mae'])}"
    yield ""
    yield from _candidate_lines(evaluation.candidates)
    yield ""
    worst = sorted(evaluation.per_group, key=lambda score: -(score.metrics["mae"] or 0.0))
    yield f"{'group, worst first':<32}{'rows':>8}{mae:>12}{'mape_ratio':>12}{'in 90 %':>10}"
    for group in worst[:_GROUPS_SHOWN]:
        numbers = _number(group.metrics["mae"]) + _number(group.metrics["mape_ratio"])
        yield f"{group.group[:31]:<32}{group.rows:>8}{numbers}{group.metrics['coverage_90_ratio'] or 0.0:>10.2f}"
    if len(worst) > _GROUPS_SHOWN:
        yield f"and {len(worst) - _GROUPS_SHOWN} more; -o json lists all"


def _candidate_lines(candidates: Sequence[ScoredCandidate]) -> Iterator[str]:
    """Yields what competed; the column of outer errors only where a method tells them."""
    is_outer_told = any(line.outer_mae is not None for line in candidates)
    yield f"{'candidate':<32}{'inner mae':>12}" + (f"{'outer mae':>12}" if is_outer_told else "")
    for line in candidates:
        outer = _number(line.outer_mae) if is_outer_told else ""
        capped = f"   without {line.rows_left_out:,} rows: too many for it" if line.rows_left_out else ""
        yield f"{line.name:<32}{_number(line.inner_mae)}{outer}{capped}"


def _number(value: float | None) -> str:
    return f"{'-':>12}" if value is None else f"{value:>12.4g}"


def _range(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
