"""cotenant convergence: what is sent of a file, what is printed, and what is refused before anything is sent."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.v1 import prediction_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor
from tests.support.predictor_service import listening_server

CURVE = "epoch,loss,note\n" + "".join(f"{k},{1 / (0.2 * k + 1) + 0.1:.6f},x\n" for k in range(20))
RUNS = "workers,servers,batch_size,steps_per_s\n" + "".join(
    f"{w},{p},64,{1 / (0.1 * 64 / w + 1 + 2 * w / p):.9f}\n" for w in (1, 2, 4) for p in (1, 2, 3)
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with listening_server(tmp_path_factory.mktemp("convergence")) as listening:
        yield listening


@pytest.fixture
def service(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_PREDICTOR", address)


def write(folder: Path, content: str) -> str:
    path = folder / "numbers.csv"
    path.write_text(content)
    return str(path)


def asked(predictor: FakePredictor) -> prediction_pb2.FitLossCurveRequest:
    (request,) = (each for each in predictor.seen if isinstance(each, prediction_pb2.FitLossCurveRequest))
    return request


def test_the_end_of_a_curve_is_printed_with_its_interval_and_every_shape(
    cotenant: CommandLine, service: None, tmp_path: Path
) -> None:
    outcome = cotenant("convergence", "loss", write(tmp_path, CURVE), "--threshold", "0.002")
    assert (outcome.code, outcome.err) == (0, "")
    assert "ends at epoch" in outcome.out
    assert all(shape in outcome.out for shape in ("optimus", "reciprocal", "power", "exponential"))
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


def test_a_curve_comes_from_standard_input_too_and_json_has_the_contracts_names(
    cotenant: CommandLine, service: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(CURVE))
    answer = json.loads(cotenant("convergence", "loss", "-", "--threshold", "0.002", "-o", "json").out)
    assert answer["lower"] < answer["epochs_total"] < answer["upper"]
    assert {curve["name"] for curve in answer["curves"]} == {"optimus", "reciprocal", "power", "exponential"}


def test_three_points_are_too_few_and_the_page_says_so(cotenant: CommandLine, service: None, tmp_path: Path) -> None:
    short = "".join(line + "\n" for line in CURVE.splitlines()[:4])
    outcome = cotenant("convergence", "loss", write(tmp_path, short), "--threshold", "0.002")
    assert "not foreseeable" in outcome.out
    assert "TOO_FEW_POINTS" in outcome.out


def test_speeds_are_printed_with_the_time_that_remains(cotenant: CommandLine, service: None, tmp_path: Path) -> None:
    flags = ("--synchrony", "synchronous", "--ask", "8x4@64", "--steps-remaining", "1000")
    outcome = cotenant("convergence", "speed", write(tmp_path, RUNS), *flags)
    speed = 1 / (0.1 * 64 / 8 + 1 + 2 * 8 / 4)
    assert f"{speed:.4g}" in outcome.out
    assert "1h36m" in outcome.out
    assert "9 runs within 0.0 % on average" in outcome.out


def test_a_column_named_accuracy_is_read_as_one(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path
) -> None:
    path = write(tmp_path, "step,accuracy\n0,0.1\n10,0.5\n")
    flags = ("--target", "0.9", "--rate-drop", "5", "--rate-drop", "7", "--patience", "2", "--prior", path)
    assert cotenant("convergence", "loss", path, *flags).code == 0
    request = asked(predictor)
    assert request.metric == prediction_pb2.CURVE_METRIC_ACCURACY
    assert [(point.progress, point.value) for point in request.points] == [(0.0, 0.1), (10.0, 0.5)]
    assert request.prior_points == request.points
    assert (request.WhichOneof("goal"), list(request.rate_drops), request.patience) == ("target_value", [5, 7], 2)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n", "no column progress or step or epoch"),
        ("", "its first line names: nothing"),
        ("a,b\n1,2\n", "its first line names: a, b"),
        ("epoch,loss\n1,high\n", "line 2, loss: 'high' is no number"),
        ("epoch,loss\n1\n", "line 2, loss: None is no number"),
        ("epoch,loss\n1,inf\n", "'inf' is no number"),
        ("epoch,loss\n" + "1,1\n" * 100_001, "more than 100,000 rows"),
    ],
)
def test_a_file_that_cannot_be_is_refused_by_line_and_column(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path, content: str, words: str
) -> None:
    outcome = cotenant("convergence", "loss", write(tmp_path, content), "--target", "1")
    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())
    assert predictor.seen == []


@pytest.mark.parametrize("flags", [(), ("--threshold", "0.1", "--target", "1")])
def test_the_goal_is_said_once(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    outcome = cotenant("convergence", "loss", write(tmp_path, CURVE), *flags)
    assert outcome.code == 2
    assert "one of --threshold and --target" in outcome.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--synchrony", "often"), "one of: asynchronous, synchronous, all_reduce"),
        (("--synchrony", "synchronous", "--ask", "eight"), "'eight' is not WORKERS[xSERVERS][@BATCH]"),
    ],
)
def test_runs_that_cannot_be_are_refused(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path, flags: tuple[str, ...], words: str
) -> None:
    outcome = cotenant("convergence", "speed", write(tmp_path, RUNS), *flags)
    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())


def test_a_missing_file_is_named(cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path) -> None:
    outcome = cotenant("convergence", "loss", str(tmp_path / "none.csv"), "--target", "1")
    assert outcome.code == 2
    assert "none.csv" in outcome.err


def test_a_table_that_is_not_there_is_told_in_words(cotenant: CommandLine, tmp_path: Path) -> None:
    outcome = cotenant("convergence", "loss", str(tmp_path / "nowhere.csv"), "--threshold", "0.01")
    assert outcome.code == 2
    assert "nowhere.csv: No such file or directory\n" in outcome.err
    assert "Errno" not in outcome.err
