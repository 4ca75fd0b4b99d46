"""How far off predictions are, on the rows and splits of the two methods that were once served and evaluated.

Our own set is small enough to be scored again. Of the public sets the small ones are; all of them take half an hour
(`python -m tests.goldens.write_goldens FOLDER accuracy`, with the public data at hand).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.interference_rounds import SETS
from benchmarks.solo_learning_tasks import TASKS, read_task
from predictor_service.evaluation.fresh_model import FittingMethod
from predictor_service.evaluation.report import evaluate_predictions
from predictor_service.evaluation.scoring import plan_rounds, predict_rounds
from predictor_service.evaluation.splits import FOLDS_MAX
from predictor_service.learning.learning_task import LearningTask
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import read_profiles
from predictor_service.selection.targets import TARGETS_BY_QUANTITY

OWN_SET: Final = Path(__file__).resolve().parents[2] / "datasets" / "cpu_standin"
DEVICE: Final = "cpu-standin"
OWN_TARGETS: Final = ("utilization", "memory", "step_time", "slowdown")
JUDGED_BY: Final[Mapping[str, str]] = {"memory": "mape_ratio", "step_time": "mape_ratio"}
"""The metric by target, where it is not the mean absolute error."""
WORSE_MAX: Final = 1.02
"""At most so many times the error of before."""
OWN_RULE: Final = ("family", 10)
"""What is held out together, and the number of splits."""
SMALL_TARGETS: Final = ("memory", "slowdown")
SMALL_ROWS: Final = 60
SMALL_RULE: Final = ("family", 2)
_SOLO_FOLDS: Final = 5
_GROUPS_TOLD_MAX: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCase:
    """One public table by one rule; solo tasks: `solo_learning_tasks`, the others: `interference_rounds`."""

    data: str
    level: str = ""

    @property
    def name(self) -> str:
        """As the goldens name it."""
        return f"slowdown, {self.data}, {self.level}" if self.level else self.data

    def read(self, shared: Path) -> tuple[LearningTask, str, int]:
        """Rows, what is held out together, and the number of splits."""
        if self.level:
            return SETS[self.data].read(shared), self.level, FOLDS_MAX[self.level]
        task = TASKS[self.data]
        return read_task(task, shared), task.level, task.folds or _SOLO_FOLDS


SMALL_PUBLIC: Final = (
    PublicCase(data="step_time, pollux on a T4, unseen architecture"),
    PublicCase(data="utilization, miso, unseen architecture"),
    PublicCase(data="gavel_2019_k80", level="family"),
)
PUBLIC: Final = (
    *(
        PublicCase(data=data, level=level)
        for data in ("alnair", "gavel_2019_k80", "gavel_2019_v100")
        for level in ("random_pair", "job", "family")
    ),
    *(PublicCase(data=name) for name in TASKS),
)


def own_problem(quantity: str, rows_max: int | None = None) -> LearningTask:
    """Our own rows, of several jobs side by side the pairs; every n-th one where fewer are wanted."""
    learning_task = read_learning_task(
        read_profiles(OWN_SET), TARGETS_BY_QUANTITY[quantity], DEVICE
    ).learning_task.in_content_order()
    learning_task = learning_task.subset([row for row, others in enumerate(learning_task.others) if len(others) <= 1])
    return (
        learning_task
        if rows_max is None
        else learning_task.subset(range(0, len(learning_task), -(-len(learning_task) // rows_max)))
    )


def judged(target: str, table: Mapping[str, Any]) -> float:
    """The one figure of a table that must not get worse."""
    return float(table["metrics"][JUDGED_BY.get(target, "mae")])


def scored_table(learning_task: LearningTask, level: str, folds: int) -> dict[str, Any]:
    """What `cotenant evaluate` scores by default: what a training on the other rows would serve, where it can."""
    rounds, method = plan_rounds(learning_task, level, folds, 0), FittingMethod(level)
    with threadpool_limits(1):
        predictions = predict_rounds(rounds, method, level, 0, lambda line: None)
    evaluation = evaluate_predictions(
        learning_task, predictions, fold_rule=level, level=level, group_by=level, excluded={}, seed=0
    )
    groups = evaluation.per_group if len(evaluation.per_group) <= _GROUPS_TOLD_MAX else ()
    return {
        "rows": evaluation.rows,
        "groups": evaluation.groups,
        "metrics": {name: _rounded(value) for name, value in evaluation.metrics.items()},
        "group_mae": {score.group: _rounded(score.metrics["mae"]) for score in groups},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")
