"""A service learns from what ran by its schedule and on a drift alarm, to the end: gate, served version, way back.

What jobs did is told as agents tell it. Hours do not pass here: what is stored becomes older by as many while the
service is down.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant.job_settings_message import settings_message
from cotenant.profile_schema import SoloRow
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1 import prediction_pb2_grpc, resources_pb2
from predictor_service.outcome_journal import FILE_NAME as JOURNAL
from predictor_service.profile_store.store import FILE_NAME as PROFILES
from predictor_service.retraining.datasets import read_dataset
from tests.support.log_schema import read_lines
from tests.support.measured_dataset import BATCHES, FAMILIES, graphs, job_settings, write_dataset
from tests.support.predictor_service import trained_store
from tests.support.retraining_service import RetrainingService, wait_until

pytestmark = [pytest.mark.endurance, pytest.mark.timeout(600)]
HOUR_MS = 3_600_000
WINDOW_MS = 20_000
RUNS_OF_A_JOB = 2
SCHEDULE = ("--retrain-hours", "24")
KEPT = {PROFILES: ("stretches",), JOURNAL: ("predictions", "outcomes")}
"""Tables that know times, by their file."""


class Laboratory:
    """A service that is restarted now and then, and the jobs that ran meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_dataset(folder / "datasets" / "invented")
        shutil.copytree(trained_store()._versions.parent, folder / "state" / "models")
        write_dataset(folder / "ran", seed=3)
        self.rows = read_dataset(folder / "ran").solo
        self.service = RetrainingService(folder, *SCHEDULE)
        self._told = 0

    def stub(self, channel: grpc.Channel) -> prediction_pb2_grpc.PredictionServiceStub:
        return prediction_pb2_grpc.PredictionServiceStub(channel)

    def run_jobs(self, factors: Sequence[float]) -> None:
        """Asks about every job, and tells what its runs then did: what the set says, with step times times a factor."""
        with grpc.insecure_channel(self.service.address) as channel:
            stub, outcomes, windows = self.stub(channel), list[messages.Outcome](), list[Any]()
            for _ in range(RUNS_OF_A_JOB):
                for row, factor in zip(self.rows, factors, strict=True):
                    answer = stub.PredictJob(_question(row), timeout=90)
                    outcomes.append(_outcome(answer.prediction_id, row, factor))
                    windows.append(self._window(row, factor))
            told = stub.RecordOutcomes(messages.RecordOutcomesRequest(outcomes=outcomes), timeout=90)
            assert told.recorded == len(outcomes)
            request = messages.RecordMeasurementWindowsRequest(measurement_windows=windows)
            kept = stub.RecordMeasurementWindows(request, timeout=90)
            assert (kept.recorded, list(kept.refused)) == (len(windows), [])

    def _window(self, row: SoloRow, factor: float) -> resources_pb2.MeasurementWindow:
        self._told += 1
        steps = round(WINDOW_MS / (_step_ms(row) * factor))
        return resources_pb2.MeasurementWindow(
            window_id=f"{self._told:032x}",
            campaign="collected_0123abcd",
            device=row.device,
            job=resources_pb2.MeasuredJob(graph_sha256=str(row.graph_sha256), settings=_settings(row)),
            micro_batch_size=row.batch,
            steps=steps,
            window_ms=round(steps * _step_ms(row) * factor),
            utilization_ratio=row.utilization_ratio,
            memory_peak_bytes=row.memory_peak_bytes,
        )

    def let_pass(self, hours: int) -> None:
        """Restarts the service so many hours later, and waits for its first look at alarms and schedule."""
        self.service.stop()
        looks = len(self.events("version_served"))
        for name, tables in KEPT.items():
            with closing(sqlite3.connect(self.service.state / name)) as store, store:
                for table in tables:
                    store.execute(f"UPDATE {table} SET at_ms = at_ms - ?", (hours * HOUR_MS,))
        for path in (self.service.state / "retrainings").glob("*.json"):
            operation = json.loads(path.read_text())
            path.write_text(json.dumps({**operation, "started_at_ms": operation["started_at_ms"] - hours * HOUR_MS}))
        self.service = RetrainingService(self.folder, *SCHEDULE)
        wait_until(lambda: len(self.events("version_served")) > looks)  # follows that look in every round

    def events(self, name: str) -> list[dict[str, Any]]:
        # A program that was forked with threads of the runtime ends with a line of theirs.
        text = "\n".join(line for line in self.service.log.read_text().splitlines() if line.startswith("{"))
        return [line["fields"] for line in read_lines(text, "predictor") if line["event"] == name]

    def ended(self, number: int) -> tuple[str, dict[str, Any]]:
        """Waits until so many retrainings began by themselves and the last has ended; returns why, and how."""
        wait_until(lambda: len(self.events("retraining_begun")) == number)
        begun = self.events("retraining_begun")[-1]
        path = self.service.state / "retrainings" / f"{begun['retraining_id']}.json"
        wait_until(lambda: json.loads(path.read_text())["state"] != "RUNNING")
        return begun["reason"], json.loads(path.read_text())

    def served(self) -> messages.PredictJobResponse:
        """Returns what is answered about one of the jobs."""
        with grpc.insecure_channel(self.service.address) as channel:
            return self.stub(channel).PredictJob(_question(self.rows[4]), timeout=90)

    def wait_for_version(self, version: str) -> None:
        wait_until(lambda: self.served().model_version == version)

    def drift(self, target: str) -> dict[str, Any]:
        """Returns what is said of a target of the stand-in."""
        command = [sys.executable, "-m", "predictor_service", "models", "drift", "-o", "json"]
        command += ["--state-dir", str(self.service.state)]
        told = subprocess.run(command, capture_output=True, text=True, timeout=120)  # ends with 4 while one is alarming
        rows: list[dict[str, Any]] = json.loads(told.stdout)["targets"]
        return next(row for row in rows if row["target"] == target)

    def command(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "predictor_service", *arguments, "--state-dir", str(self.service.state)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def _settings(row: SoloRow) -> resources_pb2.JobSettings:
    return settings_message(job_settings(row.family, row.batch))


def _question(row: SoloRow) -> messages.PredictJobRequest:
    return messages.PredictJobRequest(onnx_graph=graphs()[row.family], device=row.device, settings=_settings(row))


def _step_ms(row: SoloRow) -> float:
    assert row.step_ms_mean is not None
    return row.step_ms_mean


def _outcome(prediction_id: str, row: SoloRow, factor: float) -> messages.Outcome:
    return messages.Outcome(
        prediction_id=prediction_id,
        step_ms_mean=_step_ms(row) * factor,
        utilization_ratio=row.utilization_ratio,
        memory_peak_bytes=row.memory_peak_bytes,
        window_ms=WINDOW_MS,
    )


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Laboratory]:
    made = Laboratory(tmp_path)
    yield made
    made.service.stop()


def test_what_ran_is_learned_by_schedule_served_and_stays_taken_back(laboratory: Laboratory) -> None:
    first = laboratory.served().model_version
    laboratory.run_jobs([1.0] * len(laboratory.rows))
    laboratory.let_pass(hours=23)
    assert not laboratory.events("retraining_begun")
    laboratory.let_pass(hours=2)
    reason, end = laboratory.ended(1)
    assert (reason, end["state"]) == ("every 24 hours", "PROMOTED"), end["reasons"]
    laboratory.wait_for_version(end["version"])
    assert "service" in laboratory.command("models", "list", "-o", "json")

    laboratory.command("models", "rollback", "--why", "a test")
    laboratory.wait_for_version(first)
    laboratory.run_jobs([1.0] * len(laboratory.rows))
    laboratory.let_pass(hours=200)
    assert laboratory.served().model_version == first
    assert len(laboratory.events("retraining_begun")) == 1


def test_a_device_that_became_slower_raises_an_alarm_is_learned_and_is_predicted_right_again(
    laboratory: Laboratory,
) -> None:
    first = laboratory.served()
    slower = [1.6] * len(laboratory.rows)
    laboratory.run_jobs([1.0] * len(laboratory.rows))
    laboratory.let_pass(hours=10)
    for _ in range(2):
        laboratory.run_jobs(slower)
    assert laboratory.drift("step_ms")["is_alarming"]
    laboratory.let_pass(hours=1)
    reason, end = laboratory.ended(1)
    assert (reason, end["state"]) == ("drift alarm", "PROMOTED"), end["reasons"]
    laboratory.wait_for_version(end["version"])
    # What this very job did before the change corrects its answer as it would be measured since.
    wait_until(lambda: laboratory.served().step_ms.value > 1.5 * first.step_ms.value)
    assert laboratory.served().memory_bytes.value == pytest.approx(first.memory_bytes.value, rel=0.1)

    for _ in range(2):
        laboratory.run_jobs(slower)
    found = laboratory.drift("step_ms")
    assert not found["is_alarming"]
    assert found["model_version"] == end["version"]
    assert found["covered_ratio"] >= found["promised_ratio"] - 0.05

    laboratory.command("models", "rollback", "--why", "a test")
    laboratory.wait_for_version(first.model_version)


def test_an_alarm_whose_jobs_do_not_agree_is_refused_by_the_gate_until_an_operator_decides(
    laboratory: Laboratory,
) -> None:
    first = laboratory.served()
    some = [2.5 if row.family in ("wide", "tall") else 1.0 for row in laboratory.rows]
    # Once: what these very jobs did corrects the next answers about them, and the alarm goes off again.
    laboratory.run_jobs(some)
    assert laboratory.drift("step_ms")["is_alarming"]
    laboratory.let_pass(hours=1)
    reason, end = laboratory.ended(1)
    assert (reason, end["state"]) == ("drift alarm", "REFUSED")
    assert "step_ms: " in " ".join(end["reasons"])
    assert laboratory.served().model_version == first.model_version
    laboratory.run_jobs(some)
    laboratory.let_pass(hours=22)  # a day after the first window the schedule learns again, and so may an alarm
    laboratory.command("models", "promote", end["version"], "--why", "wide layers are slower")
    laboratory.wait_for_version(end["version"])
    assert len(laboratory.events("retraining_begun")) == 1


def test_a_fifth_of_the_labels_three_times_too_long_is_refused_and_nothing_changes(laboratory: Laboratory) -> None:
    first = laboratory.served().model_version
    jobs = len(FAMILIES) * len(BATCHES)
    laboratory.run_jobs([3.0 if number % 5 == 0 else 1.0 for number in range(jobs)])
    laboratory.let_pass(hours=25)
    _, end = laboratory.ended(1)
    assert end["state"] == "REFUSED", end["reasons"]
    assert "contradict" in " ".join(end["reasons"])
    assert laboratory.served().model_version == first
