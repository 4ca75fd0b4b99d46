"""What was predicted and then measured is learned from, unless it contradicts what is known."""

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from cotenant.v1 import prediction_pb2 as messages
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.retraining.retraining_run import RetrainingOutcome, RetrainingPlan, RetrainingResult, retrain
from tests.support.few_candidates import few_candidates
from tests.support.measured_dataset import dense_network, write_dataset
from tests.support.predictor_service import SEED, open_predictor, running_server, stub_of, trained_store

BATCHES = (8, 16, 24)


def serve_and_record(state: Path, factor: float) -> None:
    """Predicts a network that no data set knows, and reports what it then did: the prediction times a factor."""
    with running_server(state, open_predictor(state / "graphs")) as channel:
        stub = stub_of(channel)
        outcomes: list[messages.Outcome] = []
        for batch in BATCHES:
            request = messages.PredictJobRequest(
                onnx_graph=dense_network([96, 200, 10]),
                device="cpu-standin",
                settings={"global_batch_size": batch, "optimizer": "OPTIMIZER_ADAM"},  # type: ignore[arg-type]
            )
            answer = stub.PredictJob(request)
            outcomes.append(_outcome(answer, factor))
        recorded = stub.RecordOutcomes(messages.RecordOutcomesRequest(outcomes=outcomes))
        assert recorded.recorded == len(BATCHES)


def _outcome(answer: messages.PredictJobResponse, factor: float) -> messages.Outcome:
    return messages.Outcome(
        prediction_id=answer.prediction_id,
        step_ms_mean=answer.step_ms.value * factor,
        utilization_ratio=answer.utilization_ratio.value,
        memory_peak_bytes=int(answer.memory_bytes.value),
        window_ms=30_000,
    )


def learn(state: Path, datasets: Path) -> tuple[RetrainingResult, Sequence[str]]:
    plan = RetrainingPlan(state_dir=state, datasets=datasets, from_outcomes=True, seed=SEED, why="a test")
    lines: list[str] = []
    with few_candidates(), closing(ModelRegistry(state / "models", "a test")) as registry:
        return retrain(plan, registry, lines.append), lines


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.03, RetrainingOutcome.PROMOTED), (40.0, RetrainingOutcome.REFUSED)]
)
def test_outcomes_become_rows_of_the_next_version(tmp_path: Path, factor: float, expected: RetrainingOutcome) -> None:
    write_dataset(tmp_path / "datasets" / "invented")
    state = tmp_path / "state"
    shutil.copytree(trained_store()._versions.parent, state / "models")
    serve_and_record(state, factor)
    result, lines = learn(state, tmp_path / "datasets")
    assert "3 jobs and 0 pairs measured in operation" in lines
    assert result.outcome is expected, result.why
    with closing(ModelRegistry(state / "models", "a test")) as registry:
        assert set(registry.store.manifest(result.version).datasets) == {"invented", "collected"}
    if expected is RetrainingOutcome.REFUSED:
        assert "step_ms: 3 of 3 new rows contradict" in "; ".join(result.why)
