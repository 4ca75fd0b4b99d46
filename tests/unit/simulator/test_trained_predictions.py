"""The predictor's models answer the engine's questions inside the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_simulator.errors import PredictionsError
from cotenant_simulator.readers.measured_jobs import MeasuredJob, read_measured_jobs
from cotenant_simulator.trained_predictions import TrainedPredictor, trained_predictor
from cotenant_simulator.truth.kinds import GroundTruth
from cotenant_simulator.truth.trace import GIB, Trace, TraceJob
from predictor_service.features.graph_description import describe_graph
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.predictor import Predictor
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from scheduler_service.core.commands import PairMember, RequestPairPredictions, RequestPrediction
from scheduler_service.core.records import JobRequest, Level

FOLDER = Path(__file__).resolve().parents[3] / "datasets" / "cpu_standin"


class _Describer:
    def describe(self, data: bytes, bindings: object = None) -> object:
        return describe_graph(data)


@pytest.fixture(scope="module")
def measured() -> MeasuredJob:
    return next(job for job in read_measured_jobs(FOLDER).jobs if job.kind.batch >= 4)


@pytest.fixture
def untrained(measured: MeasuredJob, tmp_path: Path) -> TrainedPredictor:
    library = GraphLibrary(_Describer(), None)  # type: ignore[arg-type]
    library.describe((FOLDER / "graphs" / f"{measured.graph_sha256}.onnx").read_bytes(), {})
    return TrainedPredictor(Predictor(library, VersionHolder(VersionStore(tmp_path))))


def _question(measured: MeasuredJob, **changes: object) -> RequestPrediction:
    fields = {
        "key": measured.key,
        "device": "cpu-standin",
        "device_memory_bytes": 2 * GIB,
        "graph_sha256": measured.graph_sha256,
        "settings": measured.settings,
        "micro_batch_sizes": (4, 2, 1),
        **changes,
    }
    return RequestPrediction(**fields)  # type: ignore[arg-type]


def test_a_prediction_covers_every_micro_batch_that_was_asked(
    untrained: TrainedPredictor, measured: MeasuredJob
) -> None:
    answer = untrained.job(_question(measured))
    assert answer is not None
    batch = measured.kind.batch
    assert set(answer.memory) == {1, 2, 4, batch}
    assert set(answer.step_ms) == {(1, size) for size in (1, 2, 4, batch)}
    assert answer.level is Level.FALLBACK
    assert all(point.memory_bytes_upper_99 >= point.memory_bytes for point in answer.memory.values())


def test_a_job_without_settings_is_one_of_a_single_sample(untrained: TrainedPredictor, measured: MeasuredJob) -> None:
    answer = untrained.job(_question(measured, settings=None, micro_batch_sizes=()))
    assert answer is not None
    assert set(answer.step_ms) == {(1, 1)}


def test_what_the_predictor_refuses_is_unknown(untrained: TrainedPredictor, measured: MeasuredJob) -> None:
    assert untrained.job(_question(measured, graph_sha256="0" * 64)) is None
    member = PairMember(key="a", graph_sha256="0" * 64, settings=measured.settings)
    assert list(untrained.pairs(RequestPairPredictions(device="nowhere", members=(member,), new_keys=("a",)))) == []


def test_an_untrained_predictor_is_refused_with_the_remedy(measured: MeasuredJob, tmp_path: Path) -> None:
    job = TraceJob(
        submitted_at_ms=0, request=JobRequest(job_id="j", key=measured.key), graph_sha256=measured.graph_sha256
    )
    trace = Trace(format="test", jobs=[job], truth=GroundTruth(kinds={}))
    with pytest.raises(PredictionsError, match="holds no trained model; run: python -m predictor_service train"):
        trained_predictor(trace, models=tmp_path, graphs=None)
