"""A cluster that asks pair by pair, without graphs, learns as one that asks about all of its jobs at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from cotenant.job_settings import JobSettings
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.pair_table import ALONE, PairTable, read_alone, write_alone
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import PairJob, PairsQuestion
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.registry.served_version import ServedVersion
from tests.support.cases import for_each
from tests.support.onnx_graphs import perceptron

_DEVICE = "NVIDIA L4"
_DEMAND = np.linspace(0.3, 0.9, 8)
_JOBS = [
    PairJob(
        job_id=f"job{number}",
        settings=JobSettings(global_batch_size=8),
        known_step_ms=10.0 + number,
        known_utilization_ratio=float(demand),
        known_memory_bytes=1e9,
    )
    for number, demand in enumerate(_DEMAND)
]
_TRUTH = 2.0 * np.outer(_DEMAND, _DEMAND)


class _NoVersion:
    def current(self) -> ServedVersion | None:
        return None


def _predictor() -> Predictor:
    return Predictor(GraphLibrary(InProcessDescriber(), None), _NoVersion())


def _ask(predictor: Predictor, *places: int) -> tuple[PredictionEntry, float]:
    """The entry of a question in the journal, and how much the first job is slowed down by the second one."""
    jobs = [_JOBS[place] for place in places]
    answer = predictor.predict_pairs(PairsQuestion(device=_DEVICE, jobs=jobs))
    content: dict[str, object] = {"job_ids": [job.job_id for job in jobs], ALONE: write_alone(jobs)}
    entry = PredictionEntry(
        prediction_id="p", at_ms=0, kind="pairs", device=_DEVICE, model_version="none", content=content
    )
    return entry, float(answer.slowdown_ratio[0, 1])


def _outcomes(predictor: Predictor) -> list[tuple[PredictionEntry, Mapping[str, Any]]]:
    """Neighbours of each job are measured, one question and one outcome each."""
    joined: list[tuple[PredictionEntry, Mapping[str, Any]]] = []
    for one, two in itertools.pairwise(range(len(_JOBS))):
        entry, _ = _ask(predictor, one, two)
        for victim, other in ((one, two), (two, one)):
            outcome = {
                "victim_job_id": f"job{victim}",
                "other_job_id": f"job{other}",
                "slowdown_ratio": float(_TRUTH[victim, other]),
                "window_ms": 10_000,
            }
            joined.append((entry, outcome))
    return joined


def _error(predictor: Predictor) -> float:
    """Of pairs that were never measured."""
    return float(
        np.mean([abs(_ask(predictor, one, two)[1] - _TRUTH[one, two]) for one, two in ((0, 7), (7, 0), (2, 6), (5, 1))])
    )


def test_pairs_asked_by_themselves_learn_from_measured_pairs_of_other_questions() -> None:
    predictor = _predictor()
    before = _error(predictor)
    predictor.learn_outcomes(_outcomes(predictor))
    assert _error(predictor) < 0.3 * before


def test_what_was_learned_of_jobs_without_graphs_survives_a_restart() -> None:
    asked = _predictor()
    joined = _outcomes(asked)
    asked.learn_outcomes(joined)
    started = _predictor()
    started.relearn(joined, ())
    assert _error(started) == pytest.approx(_error(asked))


def test_one_pair_is_answered_as_inside_of_a_table() -> None:
    predictor = _predictor()
    predictor.learn_outcomes(_outcomes(predictor))
    table = predictor.predict_pairs(PairsQuestion(device=_DEVICE, jobs=_JOBS))
    for one, two in ((0, 7), (3, 1)):
        assert _ask(predictor, one, two)[1] == pytest.approx(float(table.slowdown_ratio[one, two]), rel=1e-3)


def test_jobs_known_by_their_graphs_alone_are_told_apart_by_how_long_they_wait_for_input() -> None:
    """Nothing says how busy they keep the device, but a job that waits wants it for a smaller share of its step."""
    predictor = _predictor()
    graph_sha256 = predictor.keep_graph(perceptron().SerializeToString())[0]
    jobs = [
        PairJob(
            job_id=f"{wait}{batch}",
            settings=JobSettings(global_batch_size=batch, input_wait_ratio=wait),
            graph_sha256=graph_sha256,
        )
        for wait in (0.0, 0.8)
        for batch in (8, 16)
    ]
    measured = {("0.08", "0.016"): 1.0, ("0.016", "0.08"): 1.0}
    answer = predictor.predict_pairs(PairsQuestion(device=_DEVICE, jobs=jobs, observed=measured))
    assert answer.slowdown_ratio[2, 3] < 0.5 * answer.slowdown_ratio[0, 0]


@for_each(
    "row",
    [None, [], [1.0], [1.0, 0.5, 1e9], [0.0, 0.5, 1e9, 0.0], [1.0, 2.0, 1e9, 0.0], [1.0, 0.5, float("nan"), 0.0],
     ["1", 0.5, 1e9, 0.0], [1.0, 0.5, 1e9, 1.0], {"step": 1}],
)  # fmt: skip
def test_an_entry_that_states_nothing_possible_of_a_job_is_passed_over(row: object) -> None:
    assert read_alone({"job_ids": ["a"], ALONE: [row]}) == {}
    assert read_alone({"job_ids": "a", ALONE: [row]}) == {}
    assert read_alone({"job_ids": ["a"], ALONE: row}) == {}


def test_a_measured_job_whose_figures_and_graph_are_unknown_joins_no_question() -> None:
    table = PairTable()
    entry = PredictionEntry(
        prediction_id="p", at_ms=0, kind="pairs", device=_DEVICE, model_version="v", content={"job_ids": ["a", "b"]}
    )
    outcome = {"victim_job_id": "a", "other_job_id": "b", "slowdown_ratio": 0.5, "window_ms": 10_000}
    table.learn_outcomes([(entry, outcome)])
    assert table.partners(_DEVICE, ["a"]) == []
