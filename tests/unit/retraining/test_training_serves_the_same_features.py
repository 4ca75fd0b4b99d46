"""What a model is trained on is what it is asked with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.fitting.known_rows import read_known_rows, split_learnable
from predictor_service.inference.batch_curve import JobSamples
from predictor_service.inference.job_work import JobWork
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.learning.learning_task_reader import pool_learning_tasks
from predictor_service.retraining.datasets import read_dataset
from predictor_service.selection.targets import MEMORY, STEP, UTILIZATION
from tests.support.measured_dataset import DEVICE, job_settings, write_dataset


def test_a_step_of_a_divided_batch_does_not_teach_what_a_step_of_its_part_takes(tmp_path: Path) -> None:
    """The measured step has several passes; the features of a part of the batch are those of one."""
    write_dataset(tmp_path)
    dataset = read_dataset(tmp_path)
    divided = dataclasses.replace(dataset.solo[0], sub_batch=dataset.solo[0].batch // 2, run_id="divided")
    mixed = dataclasses.replace(dataset, solo=(*dataset.solo, divided))
    known, left_out = split_learnable(pool_learning_tasks([mixed], MEMORY, DEVICE).learning_task)
    assert len(known) == len(dataset.solo)
    assert left_out == {"its batch was divided": 1}


def test_training_and_serving_build_equal_vectors_and_anchors(tmp_path: Path) -> None:
    write_dataset(tmp_path)
    dataset, device = read_dataset(tmp_path), DEVICE_TYPES[DEVICE]
    rows = {row.run_id: row for row in dataset.solo}
    for target in (UTILIZATION, MEMORY, STEP):
        known, _ = split_learnable(pool_learning_tasks([dataset], target, DEVICE).learning_task)
        learned = read_known_rows(known)
        assert learned.features is not None
        assert len(known)
        for run_id, vector, analytical_estimate in zip(
            known.row_ids, learned.features, learned.analytical_estimate, strict=True
        ):
            row = rows[run_id]
            graph = MeasuredGraph(dataset.graphs[row.graph_sha256 or ""])
            settings = job_settings(row.family, row.batch)
            served = JobSamples(JobWork(graph, settings, device, {}), settings.input_wait_ratio).at(row.batch)
            assert np.array_equal(served.values, vector)
            analytical_model = {
                MEMORY: served.analytical_memory_bytes,
                STEP: served.roofline_ms,
                UTILIZATION: served.utilization_ceiling_ratio,
            }
            assert analytical_estimate == analytical_model[target]
