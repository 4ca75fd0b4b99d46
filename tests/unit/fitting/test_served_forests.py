"""Forests of slowdowns answer from their file as they do in memory."""

from __future__ import annotations

import numpy as np

from predictor_service.fitting.conversion import NotLearnable, prove
from predictor_service.fitting.fit import task_of
from predictor_service.fitting.known_rows import split_learnable
from predictor_service.learning.learning_task_reader import read_learning_task
from predictor_service.learning.profile_files import read_profiles
from predictor_service.registry.spread_record import GoldenVectors
from predictor_service.regressors.candidates import FASTER_FOR_PAIRS
from predictor_service.selection.targets import SLOWDOWN
from predictor_service.settings import default_datasets_dir

DEVICE = "cpu-standin"


def test_no_row_falls_on_the_other_side_of_a_threshold() -> None:
    """Standardized in 32 bits, one row in a hundred did by two seeds of four, and the file was refused for it."""
    rows = read_learning_task(read_profiles(default_datasets_dir() / "cpu_standin"), SLOWDOWN, DEVICE).learning_task
    task = task_of(split_learnable(rows)[0].in_content_order(), "family", 0)
    encoded = task.target.encode(task.measured, task.analytical_estimate)
    refused = []
    for seed in (1, 2):
        forest = FASTER_FOR_PAIRS["extra_trees"](seed).fit(task.columns, encoded)
        golden = GoldenVectors(
            inputs=tuple(map(tuple, task.columns.tolist())),
            outputs=tuple(np.asarray(forest.predict(task.columns)).tolist()),
        )
        try:
            prove(forest.to_onnx, golden, "forest")
        except NotLearnable as refusal:
            refused.append(str(refusal))
    assert refused == []
