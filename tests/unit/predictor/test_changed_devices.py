"""What was measured before a device changed corrects answers as it would be measured today, until it is rolled back."""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.metrics import ServiceMetrics
from predictor_service.grpc_api.prediction_servicer import PredictionServicer
from predictor_service.grpc_api.request_pipeline import RequestPipeline
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import JobAnswer, JobQuestion, Level
from predictor_service.outcome_journal import OUTCOMES_MAX, OutcomeJournal, PredictionEntry, RecordedOutcome
from predictor_service.profile_store.store import ProfileStore
from predictor_service.registry.device_change import DeviceChange
from predictor_service.registry.manifest import seal
from predictor_service.registry.model_registry import ModelRegistry
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.retraining.restated_rows import restate_outcomes
from predictor_service.selection.targets import MEMORY, STEP, UTILIZATION
from tests.support.measured_dataset import DEVICE, graphs, job_settings
from tests.support.measurement_windows import NOW_MS, job, window
from tests.support.predictor_service import trained_store

FAMILY, BATCH = "medium", 32
TIMES = 15
BEFORE_MS, SINCE_MS, AFTER_MS = NOW_MS, NOW_MS + 1, NOW_MS + 2
SLOWER = DeviceChange(device=DEVICE, target=STEP.name, at_ms=SINCE_MS, shift=math.log(1.6))


class CountingJournal(OutcomeJournal):
    """Counts how often it is read as a whole."""

    times_read = 0

    def recorded(self, newest: int = OUTCOMES_MAX) -> list[RecordedOutcome]:
        self.times_read += 1
        return super().recorded(newest)


class Service:
    """What answers, without its server: versions are swapped in when the test says so."""

    def __init__(self, folder: Path, registry: ModelRegistry, journal: CountingJournal, profiles: ProfileStore) -> None:
        self.folder, self.registry, self.journal, self.profiles = folder, registry, journal, profiles
        self.start()

    def start(self) -> None:
        self.versions = VersionHolder(self.registry.store)
        self.versions.reload()
        self.predictor = Predictor(GraphLibrary(InProcessDescriber(), self.folder / "graphs"), self.versions)
        pipeline = RequestPipeline(ServiceMetrics(), AdmissionQueue(threads=1))
        self.servicer = PredictionServicer(self.predictor, self.journal, pipeline, self.profiles)

    def promote_with(self, *changes: DeviceChange) -> None:
        """Promotes the served models as a version that knows changes."""
        store = self.registry.store
        served = str(store.current())
        again = seal(dataclasses.replace(store.manifest(served), version="", changes=changes))
        files = {path.name: path.read_bytes() for path in store.folder(served).iterdir()}
        self.registry.add(again, files, "a test")
        self.registry.promote(again.version, "a test")
        self.follow()

    def follow(self) -> None:
        self.versions.reload()
        self.servicer.follow_changes()

    def ask(self, batch: int = BATCH) -> JobAnswer:
        settings = job_settings(FAMILY, batch)
        return self.predictor.predict_job(JobQuestion(onnx_graph=graphs()[FAMILY], device=DEVICE, settings=settings))

    def run_job(self, answer: JobAnswer, step_ms: float, at_ms: int) -> None:
        """Reports the runs of a job that was asked about."""
        settings = job_settings(FAMILY, BATCH)
        bindings = dict(settings.dimension_bindings)
        kept = [
            settings.global_batch_size,
            settings.mode,
            settings.precision,
            settings.optimizer,
            settings.input_wait_ratio,
        ]
        entry = PredictionEntry(
            prediction_id=answer.prediction_id,
            at_ms=BEFORE_MS,
            kind="job",
            device=DEVICE,
            model_version=answer.model_version,
            content={
                "job_key": answer.job_key,
                "graph_sha256": answer.graph.graph_sha256,
                "settings": kept,
                "bindings": bindings,
            },
        )
        self.journal.remember(entry)
        outcome = {"step_ms_mean": step_ms, "window_ms": 60_000}
        assert not self.journal.record([(entry.prediction_id, outcome)] * TIMES, at_ms)
        self.servicer.relearn()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    shutil.copytree(trained_store()._versions.parent, tmp_path / "models")
    with ExitStack() as stack:
        registry = stack.enter_context(closing(ModelRegistry(tmp_path / "models", "a test")))
        journal = stack.enter_context(closing(CountingJournal(tmp_path / "journal.sqlite")))
        profiles = stack.enter_context(closing(ProfileStore(tmp_path / "profiles.sqlite")))
        yield Service(tmp_path, registry, journal, profiles)


def test_what_a_job_did_before_a_change_says_what_it_takes_since_until_a_rollback_takes_that_back(
    service: Service,
) -> None:
    first = service.ask()
    service.run_job(first, first.step_ms.value, BEFORE_MS)
    assert service.ask().step_ms.value == pytest.approx(first.step_ms.value, rel=0.02)
    larger = service.ask(2 * BATCH).step_ms.value
    service.promote_with(SLOWER)
    changed = service.ask()
    assert changed.step_ms.level is Level.OBSERVED
    # Nearly all of 1.6: fifteen windows outweigh a model that here did not learn the change.
    assert changed.step_ms.value == pytest.approx(1.6 * first.step_ms.value, rel=0.05)
    assert service.ask(2 * BATCH).step_ms.value > 1.3 * larger
    service.start()
    assert service.ask().step_ms == changed.step_ms
    service.registry.roll_back("a test")
    service.follow()
    assert service.ask().step_ms.value == pytest.approx(first.step_ms.value, rel=0.02)


def test_what_a_job_did_since_a_change_counts_as_it_is(service: Service) -> None:
    first = service.ask()
    service.run_job(first, first.step_ms.value, SINCE_MS)
    before = service.ask()
    service.promote_with(SLOWER)
    assert service.ask().step_ms == before.step_ms


def test_only_a_version_that_knows_other_changes_lets_outcomes_be_read_again(service: Service) -> None:
    service.promote_with(SLOWER)
    times_read = service.journal.times_read
    service.follow()
    service.promote_with(dataclasses.replace(SLOWER))
    assert service.journal.times_read == times_read
    service.promote_with(SLOWER, dataclasses.replace(SLOWER, at_ms=AFTER_MS))
    assert service.journal.times_read == times_read + 1


def test_a_slowdown_compares_a_time_alone_of_before_a_change_as_it_would_be_since(service: Service) -> None:
    alone, shared = window(1), window(2, others=(job(2),), window_ms=40_000)
    service.profiles.add([alone], BEFORE_MS)
    service.profiles.add([shared], AFTER_MS)
    service.servicer.relearn()
    (pair,) = service.predictor.measured_pairs()
    assert pair.seen.mean == pytest.approx(math.log(2.0))
    service.promote_with(SLOWER)
    (pair,) = service.predictor.measured_pairs()
    assert pair.seen.mean == pytest.approx(math.log(2.0 / 1.6), abs=1e-4)


def test_figures_of_a_job_alone_are_restated_each_by_the_changes_of_its_target() -> None:
    busier = DeviceChange(device=DEVICE, target=UTILIZATION.name, at_ms=SINCE_MS, shift=0.3)
    smaller = DeviceChange(device=DEVICE, target=MEMORY.name, at_ms=SINCE_MS, shift=math.log(0.5))

    def restated(outcome: dict[str, object], kind: str = "job", device: str = DEVICE) -> dict[str, object]:
        entry = PredictionEntry(
            prediction_id="p", at_ms=0, kind=kind, device=device, model_version="v", content={"job_key": "k"}
        )
        recorded = [RecordedOutcome(BEFORE_MS, entry, outcome)]
        ((_, found),) = restate_outcomes(recorded, [busier, smaller, SLOWER])
        return dict(found)

    outcome: dict[str, object] = {"utilization_ratio": 0.8, "memory_peak_bytes": 3, "window_ms": 9_000, "note": "n"}
    assert restated(outcome) == {**outcome, "utilization_ratio": 1.0, "memory_peak_bytes": 2}
    assert restated(outcome, "pairs") == restated(outcome, device="a100") == outcome
    assert restated({"step_ms_mean": 10.0})["step_ms_mean"] == pytest.approx(16.0)
    no_share: dict[str, object] = {"utilization_ratio": 70.0}
    assert restated(no_share) == no_share
