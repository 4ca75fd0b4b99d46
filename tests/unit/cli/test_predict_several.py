"""Several questions in one answer: batches and devices in a table, the largest batch, jobs that share a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cotenant.v1 import prediction_pb2, resources_pb2
from tests.support.cli_cluster import CommandLine
from tests.support.fake_services import FakePredictor

GRAPHS = Path(__file__).parents[3] / "examples" / "jobs" / "graphs"
MLP, CNN = str(GRAPHS / "mlp.onnx"), str(GRAPHS / "cnn.onnx")


def asked(predictor: FakePredictor) -> list[tuple[str, int]]:
    jobs = [one for one in predictor.seen if isinstance(one, prediction_pb2.PredictJobRequest)]
    return [(one.device, one.settings.global_batch_size) for one in jobs]


@pytest.mark.parametrize(
    "flags",
    [
        ("--batch-size", "16,32", "--device", "a100,l4"),
        ("--batch-size", "16", "--batch-size", "32", "--device", "a100", "--device", "l4"),
    ],
    ids=["by commas", "one by one"],
)
def test_every_batch_is_asked_about_on_every_device_in_one_table(
    cotenant: CommandLine, predictor: FakePredictor, flags: tuple[str, ...]
) -> None:
    outcome = cotenant("predict", MLP, *flags)
    assert outcome.code == 0
    assert asked(predictor) == [("a100", 16), ("a100", 32), ("l4", 16), ("l4", 32)]
    assert len(outcome.out.strip().splitlines()) == 5


def test_the_largest_batch_is_a_number_that_a_script_can_read(cotenant: CommandLine, predictor: FakePredictor) -> None:
    outcome = cotenant("predict", MLP, "--max-batch", "--device", "l4")
    assert (outcome.code, outcome.out) == (0, "96\n")


def test_no_largest_batch_ends_with_four(cotenant: CommandLine, predictor: FakePredictor) -> None:
    predictor.answer.largest_batch_size_that_fits = 0
    outcome = cotenant("predict", MLP, "--max-batch")
    assert (outcome.code, outcome.out) == (4, "0\n")


def test_two_graphs_are_asked_about_together(cotenant: CommandLine, predictor: FakePredictor) -> None:
    predictor.pairs = prediction_pb2.PredictPairsResponse(
        job_ids=["1. mlp", "2. cnn"],
        slowdown_ratio=[0.5, 0.12, 0.34, 0.5],
        lower=[0, 0.1, 0.3, 0],
        upper=[1, 0.2, 0.4, 1],
        level=[resources_pb2.ESTIMATE_LEVEL_FALLBACK] * 4,
        in_domain=[True] * 4,
    )
    predictor.risk = prediction_pb2.PredictMemoryRiskResponse(
        independent_risk_ratio=0.001, union_bound_risk_ratio=0.02, bounds_fit=False, device_memory_bytes=2**31
    )
    outcome = cotenant("predict", MLP, CNN, "--batch-size", "16,64", "--device", "l4")
    assert outcome.code == 4
    assert asked(predictor) == [("l4", 16), ("l4", 64)]
    rows = [line.split() for line in outcome.out.splitlines()]
    assert ["1.", "mlp", "2.", "cnn", "+12", "%"] in [row[:6] for row in rows]
    assert ["2.", "cnn", "1.", "mlp", "+34", "%"] in [row[:6] for row in rows]
    assert "fit together   NO" in outcome.out
    assert "0.10 % (at most 2.00 %)" in outcome.out
    assert "INTERVAL" not in outcome.out
    assert outcome.out.count("fallback, not calibrated") == 2
    predictor.pairs.times_measured.extend([0, 3, 0, 0])
    measured = cotenant("predict", MLP, CNN, "--batch-size", "16,64", "--device", "l4").out
    assert "INTERVAL" in measured
    assert "not calibrated" not in measured


@pytest.mark.parametrize(
    ("words", "sharing"),
    [
        ((), resources_pb2.DEVICE_SHARING_UNSPECIFIED),
        (("--sharing", "mps"), resources_pb2.DEVICE_SHARING_MPS),
        (("--sharing", "time-slicing"), resources_pb2.DEVICE_SHARING_TIME_SLICING),
    ],
)
def test_pairs_are_asked_about_as_the_jobs_would_share(
    cotenant: CommandLine,
    predictor: FakePredictor,
    words: tuple[str, ...],
    sharing: resources_pb2.DeviceSharing.ValueType,
) -> None:
    predictor.pairs, predictor.risk = prediction_pb2.PredictPairsResponse(), prediction_pb2.PredictMemoryRiskResponse()
    cotenant("predict", MLP, CNN, "--batch-size", "16", *words)
    (request,) = [one for one in predictor.seen if isinstance(one, prediction_pb2.PredictPairsRequest)]
    assert request.sharing == sharing


def test_a_job_file_brings_its_settings_and_flags_win(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(f"graph: {MLP}\nsettings: {{batch_size: 24, optimizer: adam}}\n")
    assert cotenant("predict", str(job_file), "--precision", "bf16").code == 0
    (request,) = [one for one in predictor.seen if isinstance(one, prediction_pb2.PredictJobRequest)]
    assert request.settings.global_batch_size == 24
    assert request.settings.optimizer == resources_pb2.OPTIMIZER_ADAM
    assert request.settings.precision == resources_pb2.PRECISION_BF16


def waits(predictor: FakePredictor) -> list[tuple[int, float, float]]:
    asked_for = [one.settings for one in predictor.seen if isinstance(one, prediction_pb2.PredictJobRequest)]
    return [(one.global_batch_size, one.input_wait_ms, one.input_wait_ratio) for one in asked_for]


def test_a_wait_is_that_of_the_first_batch_and_its_share_of_each_step_is_shown(
    cotenant: CommandLine, predictor: FakePredictor
) -> None:
    predictor.answer.step_ms.value = 20.0
    outcome = cotenant("predict", MLP, "--batch-size", "16,32", "--input-wait-ms", "6")
    assert outcome.code == 0
    assert waits(predictor) == [(16, 6.0, 0.0), (32, 12.0, 0.0)]
    assert "WAITS" in outcome.out.splitlines()[0]
    assert "30 %" in outcome.out
    assert "60 %" in outcome.out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), (24, 6.0, 0.0)),
        (("--batch-size", "12"), (12, 3.0, 0.0)),
        (("--batch-size", "12", "--input-wait-ms", "7"), (12, 7.0, 0.0)),
        (("--input-wait-ratio", "0.5"), (24, 0.0, 0.5)),
    ],
)
def test_a_wait_of_a_job_file_is_of_its_batch_and_a_flag_replaces_it_in_either_form(
    cotenant: CommandLine,
    predictor: FakePredictor,
    tmp_path: Path,
    words: tuple[str, ...],
    expected: tuple[int, float, float],
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(f"graph: {MLP}\nsettings: {{batch_size: 24, input_wait_ms: 6}}\n")
    outcome = cotenant("predict", str(job_file), *words)
    assert outcome.code == 0
    assert waits(predictor) == [expected]
    assert ("of a step on" in outcome.out) is bool(expected[1])


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("input_wait_ms: six", "input_wait_ms must be a number, not 'six'"),
        ("input_wait_ms: .inf", "input_wait_ms is inf"),
        ("input_wait_ratio: six", "input_wait_ratio must be a number, not 'six'"),
        ("input_wait_ms: 6, input_wait_ratio: 0.5", "input_wait_ms and input_wait_ratio are both stated"),
        ("waits: 6", "unknown setting 'waits'"),
    ],
)
def test_a_setting_of_a_job_file_that_cannot_be_is_refused_by_name(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path, setting: str, told: str
) -> None:
    job_file = tmp_path / "job.yaml"
    job_file.write_text(f"graph: {MLP}\nsettings: {{batch_size: 24, {setting}}}\n")
    outcome = cotenant("predict", str(job_file))
    assert (outcome.code, predictor.seen) == (2, [])
    assert told in outcome.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((MLP, "--batch-size", "8", "--input-wait-ms", "5", "--input-wait-ratio", "0.5"), "are both stated"),
        ((MLP, "--batch-size", "8", "--input-wait-ms", "nan"), "is not a number"),
        ((MLP, "--batch-size", "8", "--input-wait-ms", "1e308"), "is not in the range"),
        ((MLP, "--batch-size", "8", "--input-wait-ms", "-1"), "is not in the range"),
        ((MLP,), "Missing option '--batch-size'"),
        ((), "Missing argument 'GRAPH'"),
        ((MLP, "--batch-size", "8,none"), "'none' is not a valid integer"),
        ((MLP, "--batch-size", "0,8"), "0 is not in the range"),
        ((MLP, CNN, "--batch-size", "1,2,3"), "one --batch-size for all, or one each"),
        ((MLP, CNN, "--batch-size", "8", "--device", "a100,l4"), "give one --device"),
        ((MLP, "--batch-size", "1,2", "--micro-batch-size", "1"), "leave it out"),
        ((MLP, "--batch-size", ",".join(["8"] * 101)), "ask about 100 at most"),
        ((*[MLP] * 9, "--batch-size", "8"), "name at most 8"),
        ((MLP, "--batch-size", "8", "--sharing", "mps"), "name several graphs, or leave --sharing out"),
        ((MLP, CNN, "--batch-size", "8", "--sharing", "mig"), "'time-slicing', 'mps'"),
    ],
)
def test_a_question_that_cannot_be_is_answered_with_its_remedy(
    cotenant: CommandLine, predictor: FakePredictor, words: tuple[str, ...], told: str
) -> None:
    outcome = cotenant("predict", *words)
    assert outcome.code == 2
    assert told in " ".join(outcome.err.split())


def test_answers_as_data_hold_all_of_them(cotenant: CommandLine, predictor: FakePredictor) -> None:
    outcome = cotenant("predict", MLP, "--batch-size", "16,32", "-o", "json")
    assert len(json.loads(outcome.out)["predictions"]) == 2


def test_each_file_that_is_no_graph_is_named_and_the_others_are_answered(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path
) -> None:
    for name in ("first.onnx", "second.onnx"):
        (tmp_path / name).write_bytes(b"no graph")
    first, second = (str(tmp_path / name) for name in ("first.onnx", "second.onnx"))
    outcome = cotenant("predict", first, MLP, second, "--batch-size", "8,16,32", "--device", "l4")
    assert outcome.code == 2
    assert [first in outcome.err, second in outcome.err, outcome.err.count("remedy:")] == [True, True, 2]
    assert asked(predictor) == [("l4", 16)]
    assert "DEVICE" in outcome.out or "memory" in outcome.out


def test_nothing_is_asked_where_no_file_is_a_graph(
    cotenant: CommandLine, predictor: FakePredictor, tmp_path: Path
) -> None:
    for name in ("first.onnx", "second.onnx"):
        (tmp_path / name).write_bytes(b"no graph")
    outcome = cotenant("predict", str(tmp_path / "first.onnx"), str(tmp_path / "second.onnx"), "--batch-size", "8")
    assert (outcome.code, outcome.out, outcome.err.count("error: ")) == (2, "", 2)
    assert predictor.seen == []


def test_a_dimension_is_bound_with_the_flag_that_does_it(cotenant: CommandLine, predictor: FakePredictor) -> None:
    predictor.answer.warnings.add(code="FIXED_BATCH", message="scaled; set dimension_bindings[batch] to change it")
    outcome = cotenant("predict", MLP, "--batch-size", "8", "--device", "l4")
    assert "set --bind batch=SIZE to change it" in " ".join(outcome.out.split())
    assert "dimension_bindings" not in outcome.out
