"""Has a prediction service learn from what agents would tell it, and says how that ended; part of compose_test.sh.

Usage: python deploy/compose_retraining.py 127.0.0.1:7070 served      (the version that answers)
       python deploy/compose_retraining.py 127.0.0.1:7070 right       (tells windows and retrains: PROMOTED)
       python deploy/compose_retraining.py 127.0.0.1:7070 mistaken    (a fifth of them three times too long: REFUSED)

What is told are the jobs that datasets/cpu_standin measured alone, so that no machine has to be quiet for it. Prints
the state, or the version; the gate's reasons go to stderr.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc

from cotenant.job_settings import JobSettings
from cotenant.job_settings_message import settings_message
from cotenant.profile_schema import SoloRow, read_rows
from cotenant.v1 import models_pb2, models_pb2_grpc, resources_pb2
from cotenant.v1 import prediction_pb2 as messages
from cotenant.v1.prediction_pb2_grpc import PredictionServiceStub

DATASET: Final = Path(__file__).parents[1] / "datasets" / "cpu_standin"
PATIENCE_S: Final = 1_200
"""Only what never comes is waited for so long."""
_CALL_S: Final = 120
_WINDOW_MS: Final = 20_000
_MISTAKEN_EVERY: Final = 5
_MISTAKEN_FACTOR: Final = 3.0
_WINDOWS_OF_A_JOB: Final = {"right": 1, "mistaken": 3}
"""A job counts by the median of all its windows."""


def measured_jobs() -> list[SoloRow]:
    """Return one sound row of each job that was measured alone."""
    rows = [row for row in read_rows(DATASET / "solo.csv", SoloRow) if row.status == "ok" and row.step_ms_mean]
    return list({row.job_key: row for row in rows}.values())


def settings_of(row: SoloRow) -> resources_pb2.JobSettings:
    """Return the settings of a measured job."""
    settings = JobSettings(
        global_batch_size=row.batch,
        precision=row.precision,
        optimizer=row.optimizer,
        input_wait_ratio=row.input_wait_ratio,
    )
    return settings_message(settings)


def windows_of(rows: list[SoloRow], kind: str) -> Iterator[resources_pb2.MeasurementWindow]:
    """Yield what agents would tell of the jobs; of `mistaken` ones a fifth of the times is wrong."""
    for number, row in enumerate(rows):
        is_wrong = kind == "mistaken" and number % _MISTAKEN_EVERY == 0
        step_ms = (row.step_ms_mean or 0.0) * (_MISTAKEN_FACTOR if is_wrong else 1.0)
        for _ in range(_WINDOWS_OF_A_JOB[kind]):
            yield resources_pb2.MeasurementWindow(
                window_id=uuid.uuid4().hex,
                campaign="collected_0123abcd",
                device=row.device,
                job=resources_pb2.MeasuredJob(graph_sha256=str(row.graph_sha256), settings=settings_of(row)),
                micro_batch_size=row.batch,
                steps=max(round(_WINDOW_MS / step_ms), 1),
                window_ms=round(max(round(_WINDOW_MS / step_ms), 1) * step_ms),
                utilization_ratio=row.utilization_ratio,
                memory_peak_bytes=row.memory_peak_bytes,
            )


def tell(channel: grpc.Channel, kind: str) -> None:
    """Upload the graphs and tell the windows of all jobs."""
    stub, rows = PredictionServiceStub(channel), measured_jobs()
    for name in sorted({str(row.graph_sha256) for row in rows}):
        content = (DATASET / "graphs" / f"{name}.onnx").read_bytes()
        stub.UploadGraph(iter([messages.UploadGraphRequest(chunk=content)]), timeout=_CALL_S)
    windows = list(windows_of(rows, kind))
    answer = stub.RecordMeasurementWindows(
        messages.RecordMeasurementWindowsRequest(measurement_windows=windows), timeout=_CALL_S
    )
    if answer.recorded != len(windows):
        raise SystemExit(f"{answer.recorded} of {len(windows)} windows were kept: {answer.refused}")


def retrain(channel: grpc.Channel, kind: str) -> str:
    """Have the service learn from its profile store; return how it ended."""
    stub = models_pb2_grpc.ModelServiceStub(channel)
    request = models_pb2.StartRetrainingRequest(request_id=str(uuid.uuid4()), from_outcomes=True, why=f"{kind} labels")
    running = stub.StartRetraining(request, timeout=_CALL_S).retraining
    question = models_pb2.GetRetrainingRequest(retraining_id=running.retraining_id)
    for _ in range(PATIENCE_S):
        if running.state != models_pb2.RETRAINING_STATE_RUNNING:
            break
        time.sleep(1)
        running = stub.GetRetraining(question, timeout=_CALL_S).retraining
    sys.stderr.write("".join(f"  {reason}\n" for reason in running.reasons))
    return models_pb2.RetrainingState.Name(running.state).removeprefix("RETRAINING_STATE_")


def served_version(channel: grpc.Channel) -> str:
    """Return the version that answers about one of the jobs."""
    row = measured_jobs()[0]
    content = (DATASET / "graphs" / f"{row.graph_sha256}.onnx").read_bytes()
    request = messages.PredictJobRequest(onnx_graph=content, device=row.device, settings=settings_of(row))
    return str(PredictionServiceStub(channel).PredictJob(request, timeout=_CALL_S).model_version)


def main(address: str, question: str) -> str:
    """Answer one question, see the module."""
    with grpc.insecure_channel(address) as channel:
        if question == "served":
            return served_version(channel)
        tell(channel, question)
        return retrain(channel, question)


if __name__ == "__main__":
    sys.stdout.write(main(*sys.argv[1:]) + "\n")
