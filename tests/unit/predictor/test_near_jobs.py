"""A job whose graph was measured is answered with a narrower interval, and the answer explains why on request."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.job_features import FEATURE_INDEX
from predictor_service.inference.batch_curve import JobSamples
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.job_work import JobWork
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion
from predictor_service.registry.manifest import NearRecord
from predictor_service.registry.served_version import ServedTarget, ServedVersion
from predictor_service.selection.conformal import calibrate
from predictor_service.selection.nearness import KIND_COLUMNS, SETTING_COLUMNS, Nearness
from predictor_service.selection.targets import MEMORY, STEP
from tests.support.measured_dataset import DEVICE, graphs, job_settings
from tests.support.predictor_service import trained_store

GRAPHS = graphs()
MEASURED, UNSEEN, BATCH = "wide", "deep", 32


class Versions:
    """Hands out the trained version, with or without what is near."""

    def __init__(self, *, has_near: bool) -> None:
        store = trained_store()
        version = store.load(store.names()[0])
        targets = dict(version.devices[DEVICE])
        if has_near:
            step = targets[STEP.name]
            record = dataclasses.replace(step.record, near=near_only_to(MEASURED, BATCH))
            targets[STEP.name] = ServedTarget(record, step._model)
            memory = targets[MEMORY.name]
            record = dataclasses.replace(memory.record, near=near_only_to(MEASURED, BATCH))
            targets[MEMORY.name] = ServedTarget(record, memory._model, memory._spread)
        self.version = dataclasses.replace(version, devices={DEVICE: targets})

    def current(self) -> ServedVersion:
        return self.version


def near_only_to(family: str, batch: int) -> NearRecord:
    """One job was measured, the one thing that is near; errors there are within a thousandth."""
    graph, settings = MeasuredGraph(describe_graph(GRAPHS[family], {})), job_settings(family, batch)
    samples = JobSamples(JobWork(graph, settings, DEVICE_TYPES[DEVICE], {}), settings.input_wait_ratio)
    columns = (*KIND_COLUMNS, *SETTING_COLUMNS)
    job = samples.at(batch).values[[FEATURE_INDEX[name] for name in columns]]
    scale = np.where(np.arange(len(columns)) < len(KIND_COLUMNS), 0.1, 1.0)
    nearness = Nearness(
        kind_columns=KIND_COLUMNS, setting_columns=SETTING_COLUMNS, scale=scale, jobs=(job / scale)[None, :]
    )
    return NearRecord(scores=calibrate(np.full(20, 1e-3), 20), nearness=nearness)


def ask(family: str, batch: int, *, has_near: bool = True, explain: bool = True) -> JobAnswer:
    question = JobQuestion(
        settings=job_settings(family, batch), device=DEVICE, onnx_graph=GRAPHS[family], explain=explain
    )
    return Predictor(GraphLibrary(InProcessDescriber(), None), Versions(has_near=has_near)).predict_job(question)


def width_notes(answer: JobAnswer) -> list[str]:
    return [notice.message for notice in answer.warnings if notice.code == "INTERVAL_WIDTH"]


def test_a_measured_graph_is_answered_closely_and_similar_batches_nearly_so() -> None:
    for batch in (BATCH, 2 * BATCH):
        near, before = ask(MEASURED, batch).step_ms, ask(MEASURED, batch, has_near=False).step_ms
        assert near.value == before.value
        assert near.upper / near.lower == pytest.approx(np.exp(2e-3), rel=1e-3)
        assert near.upper / near.lower < before.upper / before.lower
    (note,) = width_notes(ask(MEASURED, BATCH))
    assert note.endswith("memory_bytes at 0%, step_ms at 0%")


@pytest.mark.parametrize(("family", "batch"), [(UNSEEN, BATCH), (MEASURED, 1024)])
def test_an_unseen_job_and_a_batch_far_from_all_measured_ones_keep_their_width(family: str, batch: int) -> None:
    near, before = ask(family, batch), ask(family, batch, has_near=False)
    assert near.step_ms.upper == before.step_ms.upper
    (note,) = width_notes(near)
    assert note.endswith("memory_bytes at 100%, step_ms at 100%")


@pytest.mark.parametrize("family", [MEASURED, UNSEEN])
def test_how_long_a_job_waited_that_was_asked_about_before_changes_no_width_of_the_next(family: str) -> None:
    waits = (0.9, 0.0, 0.3)
    one = Predictor(GraphLibrary(InProcessDescriber(), None), Versions(has_near=True))
    for wait in waits:
        settings = dataclasses.replace(job_settings(family, 3 * BATCH), input_wait_ratio=wait)
        question = JobQuestion(settings=settings, device=DEVICE, onnx_graph=GRAPHS[family])
        found = one.predict_job(question)
        fresh = Predictor(GraphLibrary(InProcessDescriber(), None), Versions(has_near=True)).predict_job(question)
        assert found.memory_bytes == fresh.memory_bytes
        assert found.step_ms == fresh.step_ms


def test_near_jobs_are_named_only_on_request_and_only_where_there_are_any() -> None:
    assert not width_notes(ask(MEASURED, BATCH, explain=False))
    assert not width_notes(ask(MEASURED, BATCH, has_near=False))
