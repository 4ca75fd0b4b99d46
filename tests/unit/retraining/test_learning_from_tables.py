"""Folders as `datasets import` writes them are learned from: no graph files, figures of graphs joined, none at all."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cotenant.profile_schema import SoloRow
from predictor_service.commands.program import program
from predictor_service.errors import TrainingDataError
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.features.graphs.described_graph import describe_figures
from predictor_service.features.graphs.graph_description import describe_graph
from predictor_service.features.job_features import FEATURE_INDEX, build_features
from predictor_service.fitting import learnable_rows
from predictor_service.fitting.known_rows import DOUBTED, ODD_SETTINGS, ODD_STEP, WITHOUT_GRAPH
from predictor_service.importers.zoo_features import described_features
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.retraining.datasets import read_dataset, read_datasets
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.retraining.retraining_run import RetrainingOutcome, RetrainingPlan, RetrainingResult, retrain
from predictor_service.selection.targets import MEMORY, SLOWDOWN, STEP, Target
from tests.support.cases import for_each, sampled
from tests.support.few_candidates import few_candidates
from tests.support.measured_dataset import DEVICE as STANDIN
from tests.support.measured_dataset import graphs, job_settings, write_dataset
from tests.support.table_dataset import DEVICE, table_rows, write_table_dataset

A100 = DEVICE_TYPES[DEVICE]


def run(state: Path, datasets: Path) -> RetrainingResult:
    registry = ModelRegistry(state / "models", "a test")
    try:
        return retrain(RetrainingPlan(state_dir=state, datasets=datasets), registry, lambda line: None)
    finally:
        registry.close()


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    with few_candidates():
        yield


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a set of an A100 without graph files, and the state that learned from it."""
    root = tmp_path_factory.mktemp("tables")
    write_table_dataset(root / "sets" / "table")
    assert run(root / "state", root / "sets" / "table").outcome is RetrainingOutcome.PROMOTED
    return root


def test_a_table_describes_a_graph_as_its_file_does() -> None:
    for content in graphs().values():
        description = describe_graph(content)
        table = described_features(description)
        for batch in (1, 8, 200):
            graph = describe_figures(table, batch)
            assert graph is not None
            exact = build_features(description.at_batch(batch), job_settings("wide", batch), A100)
            ours = build_features(graph, job_settings("wide", batch), A100)
            assert ours.analytical_memory_bytes == pytest.approx(exact.analytical_memory_bytes, rel=1e-6)
            for name in ("log_parameters", "log_flops", "log_activation_bytes", "log_traffic_bytes", "log_nodes"):
                assert ours.values[FEATURE_INDEX[name]] == pytest.approx(exact.values[FEATURE_INDEX[name]], abs=0.01)
            assert ours.roofline_ms == pytest.approx(exact.roofline_ms, rel=0.35)


@for_each(
    "changes",
    [
        {"parameters": -1.0},
        {"nodes": 0.0, "convolution_nodes": 0.0},
        {"forward_macs_per_sample": 1e300},
        {"traffic_bytes_constant": -1e30},
        {"nodes": 1e9},
    ],
)
def test_figures_that_no_graph_can_have_describe_none(changes: dict[str, float]) -> None:
    figures = {"parameters": 10.0, "forward_macs_per_sample": 5.0, "saved_for_backward_bytes_per_sample": 40.0}
    figures |= {"widest_activation_bytes_per_sample": 8.0, "nodes": 3.0, "traffic_bytes_per_sample": 100.0}
    assert describe_figures(figures, 8) is not None
    assert describe_figures({**figures, **changes}, 8) is None
    assert describe_figures({name: figures[name] for name in figures if name != "nodes"}, 8) is None


def test_a_set_without_graph_files_becomes_a_model_of_its_device(served: Path) -> None:
    registry = ModelRegistry(served / "state" / "models", "a test")
    try:
        manifest = registry.store.manifest(registry.store.current() or "")
    finally:
        registry.close()
    assert set(manifest.targets) == {DEVICE}
    assert {"memory_bytes", "step_ms"} <= set(manifest.targets[DEVICE])
    assert manifest.targets[DEVICE]["memory_bytes"].mape_ratio < 0.1


def test_a_job_with_its_graph_is_answered_by_what_was_learned_from_a_table(served: Path, tmp_path: Path) -> None:
    (tmp_path / "graph.onnx").write_bytes(graphs()["wide"])
    arguments = ["predict", str(tmp_path / "graph.onnx"), "--device", DEVICE, "--batch-size", "16", "-o", "json"]
    result = CliRunner().invoke(program, [*arguments, "--state-dir", str(served / "state")], catch_exceptions=False)
    memory = json.loads(result.stdout)["memory_bytes"]
    assert memory["level"] == "ESTIMATE_LEVEL_GRAPH"


def test_the_promoted_version_is_judged_on_rows_without_graph_files(served: Path, tmp_path: Path) -> None:
    """None of its own groups: those are left out and counted."""
    rows = [dataclasses.replace(row, family=f"new_{row.family}") for row in table_rows(seed=3)]
    write_table_dataset(tmp_path / "others", rows)
    version = next((served / "state" / "models" / "versions").iterdir())
    arguments = ["evaluate", str(tmp_path / "others"), "--target", "memory", "--model", str(version), "-o", "json"]
    report = json.loads(CliRunner().invoke(program, arguments, catch_exceptions=False).stdout)
    assert report["rows"] == len(rows)
    assert report["metrics"]["mape_ratio"] < 0.1


def test_rows_of_jobs_alone_are_a_data_set_without_any_of_pairs(tmp_path: Path) -> None:
    write_table_dataset(tmp_path / "set")
    (tmp_path / "set" / "pairs.csv.gz").unlink()
    assert len(read_datasets(tmp_path)[0].solo) == len(read_datasets(tmp_path / "set")[0].solo) == len(table_rows())
    with pytest.raises(TrainingDataError, match="`cotenant datasets import` writes one"):
        read_datasets(tmp_path / "set" / "solo.csv.gz")


def test_rows_without_any_graph_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = table_rows()
    bare = [dataclasses.replace(row, features_json='{"set.batch_size":8}') for row in rows[:5]]
    many = [dataclasses.replace(row, gpus=2, run_id=f"many-{row.run_id}") for row in rows[5:7]]
    failed = [dataclasses.replace(row, status="failed", run_id=f"failed-{row.run_id}") for row in rows[:3]]
    write_table_dataset(tmp_path, [*bare, *rows[5:], *many, *failed])
    found = select_rows([read_dataset(tmp_path)], MEMORY, A100)
    assert len(found.learned) == len(rows) - 5
    assert dict(found.left_out) == {WITHOUT_GRAPH: 5, "more than one device": 2, "status failed": 3}


def test_what_a_set_states_as_no_job_can_is_not_learned_from(tmp_path: Path) -> None:
    rows = table_rows()
    changes: list[dict[str, Any]] = [
        {"precision": "fp64"},
        {"quality_flags": ("step_unit_differs",)},
        {"quality_flags": ("batch_not_published",)},
    ]
    odd = [dataclasses.replace(row, **change) for row, change in zip(rows, changes, strict=False)]
    write_table_dataset(tmp_path, [*odd, *rows[3:]])
    found = select_rows([read_dataset(tmp_path)], STEP, A100)
    assert dict(found.left_out) == {ODD_SETTINGS: 1, DOUBTED: 2}
    assert dict(select_rows([read_dataset(tmp_path)], MEMORY, A100).left_out) == {ODD_SETTINGS: 1, DOUBTED: 1}


def test_steps_of_compiled_models_and_of_another_memory_layout_teach_no_step_time(tmp_path: Path) -> None:
    """Half of timm's training is channels-last; learned alike, networks never seen erred by 16 %."""
    rows = table_rows()
    layouts = ("nhwc", "nhwc", "nchw")
    stated = [
        dataclasses.replace(row, features_json=str(row.features_json).replace("{", f'{{"set.layout":"{layout}",', 1))
        for row, layout in zip(rows, layouts, strict=False)
    ]
    compiled = dataclasses.replace(rows[3], campaign="infer_torch240_compiled")
    another = dataclasses.replace(rows[4], campaign="precompiled_images")
    write_table_dataset(tmp_path, [*stated, compiled, another, *rows[5:]])
    found = select_rows([read_dataset(tmp_path)], STEP, A100)
    assert dict(found.left_out) == {ODD_STEP: 3}
    assert len(found.learned) == len(rows) - 3
    assert not select_rows([read_dataset(tmp_path)], MEMORY, A100).left_out


def test_of_thousands_of_table_rows_every_family_keeps_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table_dataset(tmp_path)
    dataset = read_dataset(tmp_path)
    every = select_rows([dataset], MEMORY, A100).learned
    chosen = []
    for most in (20, 30):
        monkeypatch.setattr(learnable_rows, "TABLE_ROWS_MAX", most)
        found = select_rows([dataset], MEMORY, A100)
        assert len(found.learned) <= most
        assert found.left_out[learnable_rows.NOT_DRAWN] == len(every) - len(found.learned)
        assert {job.family for job in found.learned.jobs} == {job.family for job in every.jobs}
        chosen.append(set(found.learned.row_ids))
    assert chosen[0] < chosen[1]


@pytest.mark.parametrize(("target", "bound"), [(STEP, "GRAPH_ROWS_MAX"), (SLOWDOWN, "PAIR_ROWS_MAX")])
def test_of_thousands_of_ways_to_run_a_graph_every_family_keeps_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Target, bound: str
) -> None:
    write_dataset(tmp_path / "set")
    sets = [read_dataset(tmp_path / "set")]
    every = select_rows(sets, target, DEVICE_TYPES[STANDIN]).learned
    monkeypatch.setattr(learnable_rows, bound, 12)
    found = select_rows(sets, target, DEVICE_TYPES[STANDIN])
    assert len(found.learned) == 12 < len(every)
    assert found.left_out[learnable_rows.NOT_DRAWN] == len(every) - 12
    assert {job.family for job in found.learned.jobs} == {job.family for job in every.jobs}


def test_models_that_come_with_the_program_are_learned_from_fewer_rows_but_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table_dataset(tmp_path)
    dataset = read_dataset(tmp_path)
    monkeypatch.setattr(learnable_rows, "PUBLIC_ROWS_MAX", 20)
    every, fewer = (select_rows([dataset], STEP, A100, is_public=each).learned for each in (False, True))
    assert len(fewer) <= 20 < len(every)
    assert {job.family for job in fewer.jobs} == {job.family for job in every.jobs}
    assert len(select_rows([dataset], MEMORY, A100, is_public=True).learned) > 20


def test_a_set_of_one_device_costs_no_other_its_models(served: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "sets" / "standin")
    state = tmp_path / "state"
    assert run(state, tmp_path / "sets").outcome is RetrainingOutcome.PROMOTED
    result = run(state, served / "sets" / "table")
    assert result.outcome is RetrainingOutcome.PROMOTED, result.why
    registry = ModelRegistry(state / "models", "a test")
    try:
        version = registry.store.load(result.version)
        assert set(version.devices) == {STANDIN, DEVICE}
        assert set(version.manifest.datasets) == {"standin", "table"}
        assert set(registry.store.held_out(result.version)) == {STANDIN, DEVICE}
    finally:
        registry.close()
    assert run(state, served / "sets" / "table").outcome is RetrainingOutcome.UNCHANGED


def tripled(rows: list[SoloRow], every: int) -> list[SoloRow]:
    """Memory and step time of one row in so many times three, under other names."""
    return [
        dataclasses.replace(
            row,
            run_id=f"new-{row.run_id}",
            campaign="new",
            memory_peak_bytes=(row.memory_peak_bytes or 0) * (3 if place % every == 0 else 1),
            step_ms_mean=(row.step_ms_mean or 0.0) * (3 if place % every == 0 else 1),
        )
        for place, row in enumerate(rows)
    ]


def test_a_fifth_of_the_labels_times_three_is_refused_and_one_command_goes_back(served: Path, tmp_path: Path) -> None:
    state, sets = (shutil.copytree(served / name, tmp_path / name) for name in ("state", "sets"))
    write_table_dataset(sets / "poisoned", tripled(table_rows(seed=5), every=5))
    before = run_command("models", "list", state=state)
    refused = CliRunner().invoke(program, ["retrain", "--datasets", str(sets), "--state-dir", str(state), "-o", "json"])
    assert (refused.exit_code, json.loads(refused.stdout)["outcome"]) == (4, "refused")
    assert json.loads(refused.stdout)["served"] == served_version(state) == served_in(before)
    write_table_dataset(sets / "poisoned", tripled(table_rows(seed=5), every=10**6))
    assert run(state, sets).outcome is RetrainingOutcome.PROMOTED
    assert served_version(state) != served_in(before)
    run_command("models", "rollback", "--why", "a test", state=state)
    assert served_version(state) == served_in(before)


@pytest.mark.parametrize("known", sampled([False, True], 1), ids=["nothing is served", "another device is served"])
def test_a_fifth_of_the_first_labels_of_a_device_times_three_is_refused(tmp_path: Path, *, known: bool) -> None:
    state = tmp_path / "state"
    if known:
        write_dataset(tmp_path / "standin" / "set")
        assert run(state, tmp_path / "standin").outcome is RetrainingOutcome.PROMOTED
    write_table_dataset(tmp_path / "poisoned" / "set", tripled(table_rows(), every=5))
    result = run(state, tmp_path / "poisoned")
    assert result.outcome is RetrainingOutcome.REFUSED
    assert any("two kinds of labels seem to be mixed" in reason for reason in result.why), result.why
    assert run(state, tmp_path / "poisoned").served == result.served


def run_command(*arguments: str, state: Path) -> str:
    result = CliRunner().invoke(program, [*arguments, "--state-dir", str(state), "-o", "json"], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def served_version(state: Path) -> str:
    return served_in(run_command("models", "list", state=state))


def served_in(listed: str) -> str:
    return str(next(row["version"] for row in json.loads(listed)["versions"] if row["served"]))
