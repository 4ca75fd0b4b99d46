"""Brief calls share one core; what computes for long, and what it starts, has all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from cotenant.v1.prediction_pb2 import ListDevicesRequest, ListDevicesResponse
from predictor_service.grpc_api.admission_queue import AdmissionQueue
from predictor_service.grpc_api.metrics import ServiceMetrics
from predictor_service.grpc_api.request_pipeline import RequestPipeline
from predictor_service.grpc_api.shared_core import SharedCore

WAIT_S = 60.0
ALL = os.sched_getaffinity(0)
PRINT_CORES = "import os; print(sorted(os.sched_getaffinity(0)))"

pytestmark = pytest.mark.skipif(len(ALL) < 2, reason="one core is all there is")


class Context:
    """A call without a deadline."""

    def time_remaining(self) -> float | None:
        return None


@pytest.fixture
def line() -> Iterator[AdmissionQueue]:
    made = AdmissionQueue(threads=3)
    yield made
    made.shutdown()


def cores_in(line: AdmissionQueue, method: str, look: Callable[[], str]) -> str:
    """What a call of this method sees from a thread of the line."""
    pipeline, seen = RequestPipeline(ServiceMetrics(), line), Future[str]()

    def produce() -> ListDevicesResponse:
        seen.set_result(look())
        return ListDevicesResponse()

    line.submit(lambda: pipeline.answer(Context(), method, ListDevicesRequest(), produce))  # type: ignore[arg-type]
    return seen.result(WAIT_S)


def own_cores() -> str:
    return str(sorted(os.sched_getaffinity(0)))


def child_cores() -> str:
    return subprocess.run(
        [sys.executable, "-c", PRINT_CORES], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_all_brief_calls_share_one_core_whatever_was_called_between(line: AdmissionQueue) -> None:
    seen = set()
    for _ in range(6):
        seen.add(cores_in(line, "PredictJob", own_cores))
        assert cores_in(line, "PredictPairs", own_cores) == str(sorted(ALL))
    assert seen in [{f"[{core}]"} for core in ALL]


def test_a_process_that_a_call_starts_has_all_cores(line: AdmissionQueue) -> None:
    assert cores_in(line, "Retrain", child_cores) == str(sorted(ALL))


def test_the_maker_of_the_line_keeps_its_cores(line: AdmissionQueue) -> None:
    with line.core.entered():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == ALL


def test_where_threads_cannot_be_placed_they_run_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    core = SharedCore()
    monkeypatch.undo()
    with core.entered():
        assert os.sched_getaffinity(0) == ALL


def test_a_core_that_was_taken_away_since_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    core = SharedCore()

    def refuse(_pid: int, _cores: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with core.entered(), core.left():
        assert os.sched_getaffinity(0) == ALL
