"""What running jobs taught becomes training rows; what teaches nothing is counted with its reason."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from cotenant.graph_file import strip_weights
from cotenant.job_settings import JobSettings
from cotenant.profile_schema import check_row
from predictor_service.features.devices import DEVICE_TYPES
from predictor_service.fitting.known_rows import WITHOUT_GRAPH
from predictor_service.outcome_journal import PredictionEntry
from predictor_service.profile_store.intake import window_of_outcome
from predictor_service.profile_store.measurement_window import (
    MeasuredJob,
    MeasurementWindow,
    Source,
    StoredMeasurementWindow,
    decode,
    encode,
)
from predictor_service.profile_store.rows import make_rows
from predictor_service.registry.manifest import hash_group
from predictor_service.retraining.collected_rows import (
    BINDINGS_PER_GRAPH_MAX,
    NAME,
    TOO_MANY_BINDINGS,
    TOO_SHORT,
    CollectedProfiles,
    collect_profiles,
)
from predictor_service.retraining.datasets import list_seen_groups, read_dataset
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.selection.targets import STEP
from tests.support.measured_dataset import write_dataset
from tests.support.measurement_windows import job, kept_job, window
from tests.support.onnx_graphs import absent_tensor


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.fixture(scope="module")
def known(graphs: Path) -> MeasuredJob:
    return kept_job(graphs, 64, 48, 10, optimizer="adam")


@pytest.fixture(scope="module")
def other(graphs: Path) -> MeasuredJob:
    return kept_job(graphs, 32, 32, 10)


def bound_job(folder: Path, tokens: int) -> MeasuredJob:
    """A job whose graph leaves the batch and the number of tokens open."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "tokens", 64]) for name in "xy")
    multiply = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([multiply], "tokens", [x], [y], initializer=[absent_tensor("w", [64, 64])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    content = strip_weights(model.SerializeToString())
    sha256 = hashlib.sha256(content).hexdigest()
    (folder / f"{sha256}.onnx").write_bytes(content)
    settings = JobSettings(global_batch_size=16, dimension_bindings={"tokens": tokens})
    return MeasuredJob(graph_sha256=sha256, settings=settings)


def rewritten(folder: Path, content: bytes) -> MeasuredJob:
    """A job of the same network as another exporter would write it."""
    model = onnx.ModelProto.FromString(content)
    model.producer_name, model.graph.name = "another exporter", "again"
    changed = strip_weights(model.SerializeToString())
    sha256 = hashlib.sha256(changed).hexdigest()
    (folder / f"{sha256}.onnx").parent.mkdir(exist_ok=True)
    (folder / f"{sha256}.onnx").write_bytes(changed)
    return MeasuredJob(graph_sha256=sha256, settings=JobSettings(global_batch_size=16))


def collect(graphs: Path, *windows: MeasurementWindow) -> CollectedProfiles:
    return collect_profiles([StoredMeasurementWindow(window=item) for item in windows], graphs, [])


def test_windows_of_one_job_become_one_row_with_their_medians(graphs: Path, known: MeasuredJob) -> None:
    times = (20_000, 24_000, 200_000)
    collected = collect(graphs, *(window(number, job=known, window_ms=ms) for number, ms in enumerate(times)))
    assert collected.dataset is not None
    (row,) = collected.dataset.solo
    check_row(row)
    assert (row.step_ms_mean, row.steps, row.campaign) == (6.0, 12_000, NAME)
    assert (row.batch, row.optimizer, row.device) == (16, "adam", "cpu-standin")
    assert row.job_key == known.key
    assert collected.dataset.graphs[known.graph_sha256].nodes > 0


def test_pairs_become_one_row_with_their_median(graphs: Path, known: MeasuredJob, other: MeasuredJob) -> None:
    alone = [window(1, job=known), window(2, job=other)]
    co_located = [
        window(number, job=known, others=(other,), window_ms=ms)
        for number, ms in ((3, 22_000), (4, 24_000), (5, 90_000))
    ]
    collected = collect(graphs, *alone, *co_located)
    assert collected.dataset is not None
    (pair,) = collected.dataset.pairs
    check_row(pair)
    assert (pair.victim_job_key, pair.other_job_keys) == (known.key, (other.key,))
    assert pair.slowdown_ratio == pytest.approx(0.2)


def test_a_pair_has_one_row_for_each_way_that_the_device_was_shared(
    graphs: Path, known: MeasuredJob, other: MeasuredJob
) -> None:
    windows = [
        window(number, job=known, others=others, window_ms=ms, under_mps=under_mps)
        for number, (under_mps, others, ms) in enumerate(
            [(way, (), 20_000) for way in (False, True)] + [(False, (other,), 60_000), (True, (other,), 22_000)] * 3
        )
    ]
    collected = collect(graphs, *windows)
    assert collected.dataset is not None
    found = {row.share_mode: row.slowdown_ratio for row in collected.dataset.pairs}
    assert found == {"time_slicing": pytest.approx(2.0), "mps": pytest.approx(0.1)}


def test_two_short_windows_of_a_job_are_a_long_one(graphs: Path, known: MeasuredJob) -> None:
    short = [window(number, job=known, steps=1_200, window_ms=6_000) for number in (1, 2)]
    assert collect(graphs, *short).dataset is not None
    assert collect(graphs, short[0]).left_out == {TOO_SHORT: 1}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quality_flags": ("unsteady", "foreign_load")}, "flagged: foreign_load, unsteady"),
        ({"micro_batch_size": 4}, "its batch was divided"),
    ],
)
def test_what_teaches_nothing_is_left_out_and_named(
    graphs: Path, known: MeasuredJob, changes: dict[str, Any], reason: str
) -> None:
    collected = collect(graphs, window(1, **{"job": known, **changes}))
    assert collected.dataset is None
    assert any(reason in name for name in collected.left_out)


def test_jobs_whose_graph_is_not_kept_are_rows_without_a_graph(graphs: Path, known: MeasuredJob) -> None:
    unknown = job(0)
    pair = window(3, job=unknown, others=(known,), window_ms=24_000)
    collected = collect(graphs, window(1, job=known), window(2, job=unknown), pair)
    assert collected.dataset is not None
    assert collected.left_out == {}
    assert {row.job_key for row in collected.dataset.solo} == {known.key, unknown.key}
    assert [row.victim_job_key for row in collected.dataset.pairs] == [unknown.key]
    device = DEVICE_TYPES[collected.dataset.solo[0].device]
    found = select_rows([collected.dataset], STEP, device)
    assert [each.job_key for each in found.learned.jobs] == [known.key]
    assert found.left_out == {WITHOUT_GRAPH: 1}


def test_a_damaged_graph_teaches_nothing_and_is_named(tmp_path: Path) -> None:
    damaged = kept_job(tmp_path, 64, 48, 10)
    (tmp_path / f"{damaged.graph_sha256}.onnx").write_bytes(b"no graph")
    collected = collect(tmp_path, window(1, job=damaged))
    assert collected.dataset is None
    assert collected.left_out == {"its graph cannot be described": 1}


def test_one_graph_is_learned_in_every_way_in_which_it_was_bound(tmp_path: Path) -> None:
    short, long = (bound_job(tmp_path, tokens) for tokens in (8, 32))
    collected = collect(tmp_path, window(1, job=long), window(2, job=short), window(3, job=long))
    assert collected.dataset is not None
    assert collected.left_out == {}
    by_job = {row.job_key: row for row in collected.dataset.solo}
    assert {row.family for row in by_job.values()} == {f"graph_{short.graph_sha256[:12]}"}
    described = [collected.dataset.graphs[by_job[each.key].graph_sha256 or ""] for each in (short, long)]
    flops = [each.at_batch(16).forward_flops for each in described]
    assert flops[1] == 4 * flops[0] > 0


def test_the_same_network_under_another_hash_is_of_the_same_family(tmp_path: Path) -> None:
    """Else a network that another version of an exporter wrote would be judged by what it was learned from."""
    write_dataset(tmp_path / "known")
    sets = [read_dataset(tmp_path / "known")]
    (row,) = (row for row in sets[0].solo if row.family == "wide" and row.batch == 32)
    again = rewritten(tmp_path / "kept", (tmp_path / "known" / "graphs" / f"{row.graph_sha256}.onnx").read_bytes())
    first = kept_job(tmp_path / "kept", 48, 40, 10)
    second = rewritten(tmp_path / "kept", (tmp_path / "kept" / f"{first.graph_sha256}.onnx").read_bytes())
    stored = [StoredMeasurementWindow(window=window(n, job=each)) for n, each in enumerate((again, first, second))]
    collected = collect_profiles(stored, tmp_path / "kept", sets)
    assert collected.dataset is not None
    families = {row.job_key: row.family for row in collected.dataset.solo}
    assert families[again.key] == "wide"
    assert families[first.key] == families[second.key] == f"graph_{first.graph_sha256[:12]}"
    assert len(families) == 3


def test_what_running_jobs_taught_counts_as_seen_in_an_export_of_them_too(tmp_path: Path) -> None:
    """Else a version would be judged by what it was learned from, as families that it has not seen."""
    first = kept_job(tmp_path, 48, 40, 10)
    second = rewritten(tmp_path, (tmp_path / f"{first.graph_sha256}.onnx").read_bytes())
    windows = [window(1, job=first), window(2, job=second)]
    collected = collect(tmp_path, *windows)
    assert collected.dataset is not None
    seen = list_seen_groups([collected.dataset])
    exported = make_rows(windows).solo
    assert len({row.family for row in exported}) == 2
    for row in exported:
        assert hash_group(row.family) in seen["family"]
        assert hash_group(row.architecture) in seen["architecture"]


def test_a_binding_that_is_wrong_keeps_no_other_one_from_being_learned(tmp_path: Path) -> None:
    bound = bound_job(tmp_path, 8)
    unbound = dataclasses.replace(bound, settings=dataclasses.replace(bound.settings, dimension_bindings={}))
    collected = collect(tmp_path, window(1, job=unbound), window(2, job=bound))
    assert collected.left_out == {"its graph cannot be described": 1}
    assert collected.dataset is not None
    assert [row.job_key for row in collected.dataset.solo] == [bound.key]


def test_a_graph_that_is_bound_in_ever_new_ways_is_described_in_so_many_only(tmp_path: Path) -> None:
    jobs = [bound_job(tmp_path, tokens) for tokens in range(1, BINDINGS_PER_GRAPH_MAX + 3)]
    collected = collect(tmp_path, *(window(number, job=each) for number, each in enumerate(jobs)))
    assert collected.left_out == {TOO_MANY_BINDINGS: 2}
    assert collected.dataset is not None
    assert len(collected.dataset.graphs) == BINDINGS_PER_GRAPH_MAX


def test_what_the_store_could_not_read_is_counted(graphs: Path) -> None:
    collected = collect_profiles([StoredMeasurementWindow(window=None, fault="written by another version")], graphs, [])
    assert collected.left_out == {"written by another version": 1}


def test_outcomes_count_where_no_agent_measured_the_job(graphs: Path, known: MeasuredJob, other: MeasuredJob) -> None:
    from_outcome = window(1, job=known, source=Source.OUTCOME, window_ms=80_000)
    outcome_only = window(2, job=other, source=Source.OUTCOME)
    collected = collect(graphs, from_outcome, outcome_only, window(3, job=known))
    assert collected.dataset is not None
    assert {row.job_key: row.step_ms_mean for row in collected.dataset.solo} == {known.key: 5.0, other.key: 5.0}
    assert collected.left_out == {"an agent measured the same job": 1}


def test_a_graph_that_a_data_set_knows_keeps_its_family_and_another_one_is_its_own(
    graphs: Path, known: MeasuredJob, tmp_path: Path
) -> None:
    write_dataset(tmp_path / "set")
    dataset = read_dataset(tmp_path / "set")
    row = dataset.solo[0]
    assert row.graph_sha256 is not None
    shutil.copy(tmp_path / "set" / "graphs" / f"{row.graph_sha256}.onnx", graphs)
    named = MeasuredJob(graph_sha256=row.graph_sha256, settings=known.settings)
    stored = [
        StoredMeasurementWindow(window=window(1, job=named)),
        StoredMeasurementWindow(window=window(2, job=known)),
    ]
    collected = collect_profiles(stored, graphs, [dataset])
    assert collected.dataset is not None
    assert {item.family for item in collected.dataset.solo} == {f"graph_{known.graph_sha256[:12]}", row.family}


GOOD = {"step_ms_mean": 6.0, "utilization_ratio": 0.7, "memory_peak_bytes": 2000, "window_ms": 20_000}


def entry(measured: MeasuredJob, /, **content: Any) -> PredictionEntry:
    settings = measured.settings
    fields: dict[str, Any] = {
        "job_key": measured.key,
        "graph_sha256": measured.graph_sha256,
        "settings": [settings.global_batch_size, settings.mode, settings.precision, settings.optimizer, 0.0],
        "bindings": {},
    }
    return PredictionEntry(
        prediction_id="p",
        at_ms=1,
        kind=content.pop("kind", "job"),
        device="cpu-standin",
        model_version="v1",
        content={**fields, **content},
    )


def test_a_wait_in_milliseconds_is_learned_as_a_share_of_the_measured_step(graphs: Path, known: MeasuredJob) -> None:
    waits = dataclasses.replace(known, settings=dataclasses.replace(known.settings, input_wait_ms=1.5))
    found = window_of_outcome(entry(waits, input_wait_ms=1.5), {**GOOD, "window_ms": 60_000})
    assert isinstance(found, MeasurementWindow)
    assert found.job == waits
    dataset = collect(graphs, decode(found.window_id, encode(found)).window or found).dataset
    assert dataset is not None
    (row,) = dataset.solo
    assert (row.job_key, row.step_ms_mean, row.input_wait_ratio) == (waits.key, 6.0, 0.25)
    check_row(row)


def test_a_wait_that_is_longer_than_its_step_teaches_nothing(graphs: Path, known: MeasuredJob) -> None:
    waits = dataclasses.replace(known, settings=dataclasses.replace(known.settings, input_wait_ms=7.0))
    found = window_of_outcome(entry(waits, input_wait_ms=7.0), {**GOOD, "window_ms": 60_000})
    assert isinstance(found, MeasurementWindow)
    assert collect(graphs, found).left_out == {"its stated wait for input is longer than its step": 1}


def test_an_outcome_of_a_job_alone_is_a_window(known: MeasuredJob) -> None:
    found = window_of_outcome(entry(known), GOOD)
    assert isinstance(found, MeasurementWindow)
    assert (found.step_ms, found.job, found.source) == (6.0, known, Source.OUTCOME)
    assert found == window_of_outcome(entry(known), dict(reversed(GOOD.items())))


@pytest.mark.parametrize(
    ("outcome", "content", "reason"),
    [
        ({"quality_flags": ["noisy"]}, {}, "flagged"),
        ({"step_ms_mean": 0.0}, {}, "without a step time"),
        ({"step_ms_mean": float("nan")}, {}, "without a step time"),
        ({"step_ms_mean": 1e-300}, {}, "without a step time"),
        ({}, {"settings": None}, "without settings"),
        ({}, {"settings": [0, "train", "fp32", "sgd", 0.0]}, "InvalidBatchError"),
        ({}, {"job_key": "another"}, "without all settings"),
        ({}, {"kind": "pairs"}, "of a pair"),
    ],
)
def test_an_outcome_that_measured_nothing_to_keep_says_why(
    known: MeasuredJob, outcome: dict[str, Any], content: dict[str, Any], reason: str
) -> None:
    found = window_of_outcome(entry(known, **content), {**GOOD, **outcome})
    assert isinstance(found, str)
    assert reason in found
