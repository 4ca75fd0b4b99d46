"""Outcomes that are good enough become training rows; the others are counted with their reason."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from cotenant.profile_schema import check_row
from predictor_service.features.job_settings import JobSettings
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.retraining.datasets import read_dataset
from predictor_service.retraining.outcome_rows import QUALITY_FLAG, CollectedOutcomes, collect_outcomes
from tests.support.measured_dataset import dense_network, write_dataset

SETTINGS = JobSettings(batch_size=16, optimizer="adam")
GOOD = {"step_ms_mean": 5.0, "utilization_ratio": 0.7, "memory_peak_bytes": 2000, "window_ms": 20_000}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder of graphs as a service keeps them, and the hash of the one in it."""
    folder = tmp_path_factory.mktemp("graphs")
    content = dense_network([64, 48, 10])
    sha256 = hashlib.sha256(content).hexdigest()
    (folder / f"{sha256}.onnx").write_bytes(content)
    return folder, sha256


def entry(graph_sha256: str, number: int = 0, /, **content: Any) -> PredictionEntry:
    settings = [SETTINGS.batch_size, SETTINGS.mode, SETTINGS.precision, SETTINGS.optimizer, SETTINGS.input_wait_ratio]
    fields: dict[str, Any] = {
        "job_key": SETTINGS.key(graph_sha256),
        "graph_sha256": graph_sha256,
        "settings": settings,
        "bindings": {},
    }
    return PredictionEntry(
        prediction_id=str(number),
        at_ms=number,
        kind="job",
        device="cpu-standin",
        model_version="v1",
        content={**fields, **content},
    )


def collect(graph: tuple[Path, str], *outcomes: dict[str, Any], **content: Any) -> CollectedOutcomes:
    joined = [(entry(graph[1], number, **content), outcome) for number, outcome in enumerate(outcomes)]
    return collect_outcomes(joined, graph[0], [])


def test_outcomes_of_one_job_become_one_row_with_their_medians(graph: tuple[Path, str]) -> None:
    slow, odd = {**GOOD, "step_ms_mean": 6.0}, {**GOOD, "step_ms_mean": 50.0}
    collected = collect(graph, GOOD, slow, odd)
    assert collected.dataset is not None
    (row,) = collected.dataset.solo
    check_row(row)
    assert row.step_ms_mean == 6.0
    assert (row.batch, row.optimizer, row.device) == (16, "adam", "cpu-standin")
    assert row.quality_flags == (QUALITY_FLAG,)
    assert row.job_key == SETTINGS.key(graph[1])
    assert collected.dataset.graphs[graph[1]].nodes > 0


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ({**GOOD, "quality_flags": ["noisy"]}, "flagged: noisy"),
        ({**GOOD, "window_ms": 500}, "less than 10 s"),
        ({**GOOD, "step_ms_mean": 0.0}, "without a step time"),
        ({**GOOD, "step_ms_mean": float("nan")}, "without a step time"),
        ({**GOOD, "utilization_ratio": 70.0}, "utilization outside"),
    ],
)
def test_what_is_not_good_enough_is_left_out_and_named(
    graph: tuple[Path, str], outcome: dict[str, Any], reason: str
) -> None:
    collected = collect(graph, outcome)
    assert collected.dataset is None
    assert any(reason in name for name in collected.left_out)


def test_a_graph_that_is_not_kept_any_more_teaches_nothing(graph: tuple[Path, str]) -> None:
    collected = collect(graph, GOOD, graph_sha256="0" * 64)
    assert collected.dataset is None
    assert "not kept any more" in next(iter(collected.left_out))


def test_predictions_of_an_older_program_teach_nothing(graph: tuple[Path, str]) -> None:
    assert collect(graph, GOOD, settings=None).dataset is None


def test_a_graph_that_a_data_set_knows_keeps_its_family_and_another_one_is_its_own(
    graph: tuple[Path, str], tmp_path: Path
) -> None:
    write_dataset(tmp_path / "known")
    known = read_dataset(tmp_path / "known")
    row = known.solo[0]
    assert row.graph_sha256 is not None
    joined = [(entry(row.graph_sha256, 0, job_key="a"), GOOD), (entry(graph[1], 1), GOOD)]
    folder = tmp_path / "graphs"
    folder.mkdir()
    for source in (tmp_path / "known" / "graphs" / f"{row.graph_sha256}.onnx", graph[0] / f"{graph[1]}.onnx"):
        (folder / source.name).write_bytes(source.read_bytes())
    collected = collect_outcomes(joined, folder, [known])
    assert collected.dataset is not None
    assert {item.family for item in collected.dataset.solo} == {f"graph_{graph[1][:12]}", row.family}
