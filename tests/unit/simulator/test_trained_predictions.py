"""The predictor's models answer the engine's questions inside the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant_simulator.errors import PredictionsError
from cotenant_simulator.readers.measured_jobs import MeasuredJob, read_measured_jobs
from cotenant_simulator.trained_predictions import HeldOutErrors, TrainedPredictor, read_held_out, trained_predictor
from cotenant_simulator.truth.kinds import GroundTruth
from cotenant_simulator.truth.trace import GIB, Trace, TraceJob
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.predictor import Predictor
from predictor_service.registry.held_out import HeldOutRows
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


def _rows(*pairs: tuple[float, float]) -> HeldOutRows:
    predicted, measured = zip(*pairs, strict=True)
    names = tuple(f"row {place}" for place in range(len(pairs)))
    return HeldOutRows(row_ids=names, measured=measured, predicted=predicted, groups=(("family",),) * len(pairs))


HELD_OUT = {
    "cpu-standin": {
        "memory_bytes": _rows((110.0, 100.0)),
        "utilization_ratio": _rows((0.5, 0.5)),
        "slowdown_ratio": _rows((0.2, 0.4), (0.3, 0.001)),
        "step_ms": _rows((1.0, 4.0)),
    },
    "V100": {"step_ms": _rows((3.0, 2.0), (1.0, 2.0)), "memory_bytes": _rows((80.0, 100.0), (100.0, 100.0))},
}


def test_held_out_errors_are_those_of_the_device_type_or_of_all_but_the_stand_in() -> None:
    errors = HeldOutErrors(HELD_OUT, device="V100", seed=1)
    assert {errors.factor(f"step/job-{number}/V100") for number in range(40)} == {1.5, 0.5}
    assert {errors.factor(f"step/a/b#{number}/gpu") for number in range(40)} == {1.5, 0.5}
    assert errors.factor("step/job/cpu-standin") == 0.25
    assert errors.factor("step/job-1/V100") == HeldOutErrors(HELD_OUT, device="", seed=1).factor("step/job-1/V100")
    # Rows of next to no slowdown say nothing, and only the stand-in has any.
    assert {errors.factor(f"slowdown/a/b{number}/V100") for number in range(20)} == {0.5}
    assert errors.memory_bound_ratio == pytest.approx(1.25)
    assert HeldOutErrors(HELD_OUT, device="cpu-standin", seed=1).memory_bound_ratio == 1.0


def test_a_version_without_held_out_rows_is_named() -> None:
    with pytest.raises(PredictionsError, match=r"no held-out rows of slowdown_ratio; use oracle, .* \(--models\)"):
        HeldOutErrors({"V100": {**HELD_OUT["V100"], "utilization_ratio": _rows((1, 1))}}, device="", seed=0)


def test_errors_of_the_version_that_comes_with_the_program_are_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotenant_simulator.trained_predictions.default_state_dir", lambda: tmp_path)
    errors = HeldOutErrors(read_held_out(None), device="NVIDIA A100-SXM4-40GB", seed=0)
    factors = [errors.factor(f"memory/job-{number}/NVIDIA A100-SXM4-40GB") for number in range(400)]
    assert 0.02 < sum(abs(factor - 1) for factor in factors) / 400 < 0.15
    assert 1.1 < errors.memory_bound_ratio < 5.0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(PredictionsError, match="holds no trained model; run: python -m predictor_service train"):
        read_held_out(tmp_path)
