"""Jobs with an optimizer that no row of a type had: physics changes what was learned of the one that was measured."""

from __future__ import annotations

import dataclasses

import pytest

from cotenant.job_settings import JobSettings
from cotenant.profile_schema import SoloRow, write_rows
from predictor_service.commands.predict import open_predictor
from predictor_service.fitting import competition
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion, Level
from predictor_service.learning.profile_files import read_profiles
from predictor_service.registry.version_store import VersionStore
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.retraining.datasets import read_dataset
from predictor_service.retraining.training import train_version
from tests.support.measured_dataset import DEVICE, graphs, write_dataset

TYPICAL_BYTES = 1.3e8
BATCHES = (8, 32, 128)


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """Learned from jobs with Adam: the more they count the less they take, as by chance of the few that were run."""
    folder = tmp_path_factory.mktemp("adam")
    write_dataset(folder / "set")
    rows = [shrinking(row) for row in read_profiles(folder / "set").solo]
    write_rows(folder / "set" / "solo.csv", rows, SoloRow)
    store = VersionStore(folder / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(competition, "CANDIDATES", {"ridge": CANDIDATES["ridge"]})
        trained = train_version([read_dataset(folder / "set")], seed=0)
    store.add(trained.manifest, trained.files)
    store.activate(trained.manifest.version)
    return open_predictor(folder)


def shrinking(row: SoloRow) -> SoloRow:
    assert row.optimizer == "adam"
    memory_bytes = row.memory_peak_bytes or 0
    return dataclasses.replace(row, memory_peak_bytes=int(memory_bytes * (TYPICAL_BYTES / memory_bytes) ** 4))


def ask(predictor: Predictor, network: str, optimizer: str, batch: int) -> JobAnswer:
    settings = JobSettings(global_batch_size=batch, optimizer=optimizer)
    question = JobQuestion(settings=settings, device=DEVICE, onnx_graph=graphs()[network], explain=True)
    return predictor.predict_job(question)


def test_an_optimizer_that_keeps_less_never_needs_more(predictor: Predictor) -> None:
    for network in ("medium", "wide", "tall"):
        for batch in BATCHES:
            sgd, momentum, adam = (ask(predictor, network, each, batch) for each in ("sgd", "momentum", "adam"))
            for less, more in ((sgd, momentum), (momentum, adam)):
                assert less.memory_bytes.level is Level.GRAPH
                assert less.memory_bytes.value < more.memory_bytes.value
                assert (less.memory_bytes.upper_99 or 0) <= (more.memory_bytes.upper_99 or 0)
                assert less.step_ms.value <= more.step_ms.value


def test_the_parts_of_such_an_answer_add_up_to_it(predictor: Predictor) -> None:
    for optimizer in ("sgd", "adam"):
        answer = ask(predictor, "wide", optimizer, 24)
        for estimate in (answer.memory_bytes, answer.step_ms):
            assert sum(each.contribution for each in estimate.explanation) == pytest.approx(estimate.value)


def test_such_a_job_stays_out_of_domain(predictor: Predictor) -> None:
    found = ask(predictor, "wide", "sgd", 32).memory_bytes
    assert not found.in_domain
    assert "numbers kept per parameter by the optimizer 0, trained 2" in found.unusual_features
