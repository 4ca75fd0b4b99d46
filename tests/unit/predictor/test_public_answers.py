"""Answers by models that come with the program: others measured, so no range is promised and no context known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cotenant.job_settings import JobSettings
from predictor_service.features.uncalibrated_memory import CONTEXT_SEEN_BYTES, EXPECTED
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion, Level, PairJob, RiskQuestion
from predictor_service.inference.unusual_features import OF_OTHERS
from predictor_service.registry.manifest import Manifest, TargetRecord, seal
from predictor_service.registry.public_version import read_public_version
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from predictor_service.selection.operator_mix import OPERATORS, OperatorMix
from predictor_service.selection.targets import MEMORY, STEP
from tests.support.onnx_graphs import mobilenet_v2
from tests.support.public_package import packed_version
from tests.support.table_dataset import DEVICE

GRAPH = mobilenet_v2("batch").SerializeToString()
OTHER, STANDIN = "NVIDIA H200", "cpu-standin"
EVERYTHING = OperatorMix(networks=np.zeros((1, len(OPERATORS))), distance_max=10.0, near=10.0, far=10.0)
NOTHING = dataclasses.replace(EVERYTHING, distance_max=0.0, near=0.0, far=0.0)


def predictor_on(folder: Path, mix: OperatorMix | None = EVERYTHING, *, is_public: bool = True) -> Predictor:
    """Opens a predictor on the package, whose model of memory takes networks for known ones by a mix of operators."""
    packed = packed_version()
    manifest = seal(dataclasses.replace(packed.manifest, version="", targets=changed(packed.manifest, mix, is_public)))
    return served(folder, manifest, packed.files)


def served(folder: Path, manifest: Manifest, files: Mapping[str, bytes]) -> Predictor:
    """Opens a predictor on one version."""
    store = VersionStore(folder / "models")
    store.add(manifest, files)
    store.activate(manifest.version)
    versions = VersionHolder(store)
    versions.reload()
    return Predictor(GraphLibrary(InProcessDescriber(), None), versions)


def changed(manifest: Manifest, mix: OperatorMix | None, is_public: bool) -> dict[str, Mapping[str, TargetRecord]]:
    records = {
        name: dataclasses.replace(record, operator_mix=mix, is_public=is_public)
        for name, record in manifest.targets[DEVICE].items()
    }
    return {**manifest.targets, DEVICE: records}


def ask(predictor: Predictor, device: str, batch: int = 16, **settings: Any) -> JobAnswer:
    job = JobSettings(global_batch_size=batch, **{"optimizer": "adam", **settings})
    return predictor.predict_job(JobQuestion(settings=job, device=device, onnx_graph=GRAPH))


def test_a_public_model_answers_and_promises_nothing(tmp_path: Path) -> None:
    answer = ask(predictor_on(tmp_path), DEVICE)
    for estimate in (answer.memory_bytes, answer.step_ms):
        assert estimate.level is Level.GRAPH
        assert estimate.range_not_calibrated
        assert not estimate.in_domain
        assert estimate.unusual_features[0] == OF_OTHERS
    notice = next(each for each in answer.warnings if each.code == "PUBLIC_MODEL")
    assert "what others measured of this device type" in notice.message
    assert not any(each.code == "OUT_OF_DOMAIN" for each in answer.warnings)


def test_a_public_model_says_that_a_job_is_unlike_what_was_measured(tmp_path: Path) -> None:
    (notice,) = ask(predictor_on(tmp_path), DEVICE, optimizer="sgd").warnings
    assert "; this job is unlike what they measured: numbers kept per parameter by the optimizer 0" in notice.message


def test_the_ends_of_memory_have_the_contexts_that_other_machines_were_seen_to_hold(tmp_path: Path) -> None:
    public = ask(predictor_on(tmp_path / "public"), DEVICE).memory_bytes
    own = ask(predictor_on(tmp_path / "own", is_public=False), DEVICE).memory_bytes
    assert public.value == own.value
    assert public.upper_99 is not None
    assert own.upper_99 is not None
    more_bytes = CONTEXT_SEEN_BYTES[1] - EXPECTED.context_bytes
    assert public.upper_99 - own.upper_99 == pytest.approx(more_bytes)
    assert public.upper - own.upper == pytest.approx(more_bytes)
    assert 0 < public.lower < own.lower


def test_a_device_type_without_rows_has_the_memory_that_others_measured_on_another_one(tmp_path: Path) -> None:
    predictor = predictor_on(tmp_path)
    here, there = (ask(predictor, device).memory_bytes for device in (DEVICE, OTHER))
    assert there.value == pytest.approx(here.value)
    assert there.level is Level.FALLBACK
    assert there.range_not_calibrated
    assert there.upper_99 is not None
    assert here.upper_99 is not None
    assert there.upper_99 > here.upper_99
    assert there.lower < here.lower


@pytest.mark.parametrize("device", [DEVICE, OTHER])
def test_tf32_keeps_as_much_memory_as_fp32(tmp_path: Path, device: str) -> None:
    predictor = predictor_on(tmp_path)
    assert ask(predictor, device, precision="tf32").memory_bytes[:3] == pytest.approx(
        ask(predictor, device).memory_bytes[:3]
    )


@pytest.mark.parametrize("device", ["Tesla T4", "Tesla K80", "Tesla P100-PCIE-16GB"])
def test_a_card_without_units_for_bf16_is_answered_by_its_own_rows_of_fp32(tmp_path: Path, device: str) -> None:
    packed = read_public_version()
    assert packed is not None
    predictor = served(tmp_path, packed.manifest, packed.files)
    bf16, fp32 = (ask(predictor, device, precision=precision).step_ms for precision in ("bf16", "fp32"))
    assert bf16.level is fp32.level is Level.GRAPH
    assert bf16.value == pytest.approx(fp32.value, rel=0.5)
    assert bf16.value <= fp32.value
    assert bf16.unusual_features[1].startswith("precision bf16, trained")


@pytest.mark.parametrize("settings", [{"precision": "fp16"}, {"mode": "infer", "optimizer": "sgd"}], ids=str)
def test_what_others_did_not_measure_is_answered_by_constants(tmp_path: Path, settings: dict[str, Any]) -> None:
    with_model = ask(predictor_on(tmp_path / "known"), OTHER, **settings).memory_bytes
    without = ask(predictor_on(tmp_path / "strange", NOTHING), OTHER, **settings).memory_bytes
    assert with_model == without


@pytest.mark.parametrize("mix", [NOTHING, None], ids=["a strange network", "too few networks to tell"])
def test_a_network_that_others_did_not_measure_is_answered_by_constants(
    tmp_path: Path, mix: OperatorMix | None
) -> None:
    known, strange = ask(predictor_on(tmp_path / "a"), OTHER), ask(predictor_on(tmp_path / "b", mix), OTHER)
    assert known.memory_bytes.value != strange.memory_bytes.value


@pytest.mark.parametrize(
    ("mix", "settings"),
    [(NOTHING, {}), (EVERYTHING, {"precision": "bf16"}), (EVERYTHING, {"mode": "infer", "optimizer": "sgd"})],
    ids=["a strange network", "a precision without rows", "a mode without rows"],
)
def test_on_the_type_that_others_measured_too_other_jobs_than_theirs_are_answered_as_on_any_type(
    tmp_path: Path, mix: OperatorMix, settings: dict[str, Any]
) -> None:
    answer = ask(predictor_on(tmp_path, mix), DEVICE, **settings)
    for estimate in (answer.memory_bytes, answer.step_ms):
        assert estimate.level is Level.FALLBACK
        assert estimate.unusual_features == (f"nothing was measured of such jobs on {DEVICE}",)
    assert [each.code for each in answer.warnings] == ["NO_TRAINED_MODEL"]


def test_the_stand_in_is_answered_by_its_own_models(tmp_path: Path) -> None:
    answer = ask(predictor_on(tmp_path), STANDIN)
    assert OF_OTHERS not in answer.memory_bytes.unusual_features
    assert not any(each.code == "PUBLIC_MODEL" for each in answer.warnings)


def test_memory_by_what_others_measured_never_falls_as_the_batch_grows(tmp_path: Path) -> None:
    predictor = predictor_on(tmp_path)
    for device in (DEVICE, OTHER):
        found = [ask(predictor, device, batch).memory_bytes for batch in (1, 3, 8, 64, 100, 1000, 100_000)]
        for name in ("value", "lower", "upper_99"):
            values = [getattr(each, name) for each in found]
            assert values == sorted(values), name


def test_no_chance_of_running_out_of_memory_is_made_of_the_errors_of_other_machines(tmp_path: Path) -> None:
    predictor = predictor_on(tmp_path)
    graph, _, _ = predictor.keep_graph(GRAPH)
    job = PairJob(job_id="a", settings=JobSettings(global_batch_size=16, optimizer="adam"), graph_sha256=graph)
    answer = predictor.predict_memory_risk(RiskQuestion(device=DEVICE, jobs=[job]))
    assert answer.union_bound_ratio is None
    assert [each.code for each in answer.warnings] == ["PUBLIC_MODEL"]


def test_targets_of_the_package_are_those_of_others_and_of_the_stand_in() -> None:
    targets = packed_version().manifest.targets
    assert {MEMORY.name, STEP.name} <= set(targets[DEVICE])
    assert all(record.is_public for record in targets[DEVICE].values())
    assert not any(record.is_public for record in targets[STANDIN].values())
