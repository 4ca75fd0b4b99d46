"""What a target that a service has loaded, or is about to store, says of measured rows; evaluations judge it.

A service answers a step time that was learned relative to the model of all types by that model. Measured rows are
answered by models of all types that have not seen the rows' families, because the one that serves learned public rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from predictor_service.fitting.known_rows import read_known_rows
from predictor_service.fitting.step_bases import unseen_step_ms
from predictor_service.learning.learning_task import CandidateResult, Forecast, LearningTask
from predictor_service.learning.multiway_colocation import compose_multiway_slowdowns, every_pair, pair_up, widest_pair
from predictor_service.registry.manifest import TargetRecord
from predictor_service.registry.served_version import ServedTarget
from predictor_service.selection.targets import SLOWDOWN

_CONFIDENCE = 0.9


def list_results(record: TargetRecord) -> Sequence[CandidateResult]:
    """The scored table of a training."""
    return [CandidateResult(name=line.name, inner_mae=line.error_mean_unit) for line in record.candidates]


def describe_choice(record: TargetRecord) -> str:
    """The chosen candidate, and what it is relative to where that was chosen too."""
    return record.winner if record.basis is None else f"{record.winner} of {record.basis.name}"


def forecast_known(model: ServedTarget, learning_task: LearningTask) -> Forecast:
    """Answers rows for which `known_rows.why_unanswerable` has no reason; of several jobs by their pairs."""
    if learning_task.target is SLOWDOWN and any(len(others) != 1 for others in learning_task.others):
        return _forecast_crowds(model, learning_task)
    rows = read_known_rows(learning_task)
    bases = rows.analytical_estimate
    if model.is_of_all_types:
        found = unseen_step_ms(learning_task)
        assert found is not None  # rows that can be answered have what the models of all types ask
        bases = found
    columns, near, familiar, network_novelty = rows.columns, None, None, None
    if rows.features is not None:  # an earlier version may have learned from other columns of the same vector
        columns, near = model.select(rows.features), model.novelty(rows.features)
        familiar, network_novelty = model.is_familiar(rows.features), model.network_novelty(rows.features)
    bounded = model.predict_bounded(
        columns, bases, _CONFIDENCE, novelty=near, network_novelty=network_novelty, vectors=rows.features
    )
    return Forecast(
        value=bounded.value,
        lower_90=bounded.lower,
        upper_90=bounded.upper,
        upper_99=bounded.upper_99,
        in_domain=model.contains(columns) if familiar is None else model.contains(columns) & familiar,
    )


def _forecast_crowds(model: ServedTarget, learning_task: LearningTask) -> Forecast:
    pairs, row_of_pair = pair_up(learning_task)
    each, rows = forecast_known(model, pairs), len(learning_task)
    value = compose_multiway_slowdowns(learning_task, each.value, row_of_pair)
    middle, compressed = SLOWDOWN.compress(each.value), SLOWDOWN.compress(value)
    half_width = widest_pair(SLOWDOWN.compress(each.upper_90) - middle, row_of_pair, rows)
    upper = widest_pair(SLOWDOWN.compress(each.upper_99) - middle, row_of_pair, rows)
    return Forecast(
        value=value,
        lower_90=np.maximum(SLOWDOWN.expand(compressed - half_width), 0.0),
        upper_90=SLOWDOWN.expand(compressed + half_width),
        upper_99=SLOWDOWN.expand(compressed + np.maximum(upper, half_width)),
        in_domain=every_pair(each.in_domain, row_of_pair, rows),
    )
