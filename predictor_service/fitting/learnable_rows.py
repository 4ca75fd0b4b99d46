"""Which measured rows a version is learned from: the same whether `retrain` stores it or `evaluate` judges it.

Of jobs that public tables describe, thousands are alike: of each family so many are drawn, by the hash of their rows,
that no more than `TABLE_ROWS_MAX` remain. Apart from these, the same holds of jobs that came with their graph files, up
to `GRAPH_ROWS_MAX`, and of pairs: one network that was run in ten thousand ways outvotes no other, and the time of a
retraining is bounded. The draw of a larger set holds that of a smaller one where the limit allows, so that versions
share rows to be compared on.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from predictor_service.fitting.known_rows import name_rows, split_learnable
from predictor_service.fitting.table_rows import has_vector
from predictor_service.learning.failed_runs import leave_out_failed_runs
from predictor_service.learning.learning_task import LearningTask
from predictor_service.selection.targets import MEMORY, SLOWDOWN

TABLE_ROWS_MAX: Final = 2_500
GRAPH_ROWS_MAX: Final = 2_500
PAIR_ROWS_MAX: Final = 5_000
PUBLIC_ROWS_MAX: Final = 1_000
"""Of models that come with the program, but for memory."""
NOT_DRAWN: Final = "not among those that were drawn evenly by family"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LearnableRows:
    """Rows of one target.

    Attributes:
        learned: To learn from, in the order of their content.
        left_out: All others by reason.
    """

    learned: LearningTask
    left_out: Mapping[str, int]


def select_learnable(learning_task: LearningTask, *, is_public: bool = False) -> LearnableRows:
    """Selects the rows that a version is learned from; whatever is not returned is counted.

    Args:
        learning_task: Measured rows, of one device type.
        is_public: Whether models are learned that come with the program: smaller ones, of fewer rows.
    """
    known, left_out = split_learnable(learning_task)
    known = leave_out_failed_runs(known, left_out)
    if learning_task.target is SLOWDOWN:
        kinds = [(list(range(len(known))), PAIR_ROWS_MAX)]
    else:
        most = PUBLIC_ROWS_MAX if is_public and learning_task.target is not MEMORY else TABLE_ROWS_MAX
        with_graph = [has_vector(job) for job in known.jobs]
        kinds = [
            ([place for place, each in enumerate(with_graph) if each is kind], rows_max)
            for kind, rows_max in ((False, most), (True, GRAPH_ROWS_MAX))
        ]
    places = [place for candidates, rows_max in kinds for place in _not_drawn(known, candidates, rows_max)]
    known = _drop(known, places, NOT_DRAWN, left_out)
    return LearnableRows(learned=known.in_content_order(), left_out=left_out)


def _drop(learning_task: LearningTask, places: Sequence[int], reason: str, left_out: Counter[str]) -> LearningTask:
    if not places:
        return learning_task
    left_out[reason] += len(places)
    dropped = frozenset(places)
    return learning_task.subset([place for place in range(len(learning_task)) if place not in dropped])


def _not_drawn(learning_task: LearningTask, candidates: Sequence[int], rows_max: int) -> list[int]:
    """Those of the candidates, places of rows, beyond the limit: of every family those with the largest hashes."""
    if len(candidates) <= rows_max:
        return []
    families: dict[str, list[int]] = defaultdict(list)
    for place in candidates:
        families[learning_task.jobs[place].family].append(place)
    most = _share([len(places) for places in families.values()], rows_max)
    names = name_rows(learning_task)
    return [place for places in families.values() for place in sorted(places, key=names.__getitem__)[most:]]


def _share(sizes: Sequence[int], rows_max: int) -> int:
    """The largest number that every family may have, so that all together have at most `rows_max`."""
    low, high = 0, max(sizes)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(min(size, middle) for size in sizes) <= rows_max else (low, middle - 1)
    return low
