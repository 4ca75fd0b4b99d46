"""Retrainings of a service: one at a time, remembered, and gone with the service."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from predictor_service.errors import InvalidRequestError, RetrainingBusyError, ServiceError, UnknownRetrainingError
from predictor_service.retraining.operations import (
    REMEMBERED_MAX,
    OperationState,
    RetrainingOperation,
    RetrainingOperations,
)

PATIENCE_S = 240.0


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replaces what is started by a few lines of Python."""

    def write(lines: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{lines}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return write


def open_operations(folder: Path, follow: Callable[[], object] = lambda: None) -> RetrainingOperations:
    return RetrainingOperations(folder / "state", folder / "datasets", 0, lambda: None, follow)


def start(operations: RetrainingOperations) -> str:
    return operations.start(from_outcomes=False, seed=None, why="a test").retraining_id


def wait_for_end(operations: RetrainingOperations, retraining_id: str) -> RetrainingOperation:
    for _ in range(int(PATIENCE_S / 0.05)):
        operation = operations.get(retraining_id)
        if operation.state is not OperationState.RUNNING:
            return operation
        time.sleep(0.05)
    raise AssertionError("it did not end")


RESULT = 'print(json.dumps({"outcome": "%s", "version": "abc", "why": ["because"]}))'


@pytest.mark.parametrize("outcome", ["promoted", "refused", "unchanged"])
def test_it_ends_as_its_process_reports(tmp_path: Path, program: Callable[[str], None], outcome: str) -> None:
    program("print('half way', file=sys.stderr)\n" + RESULT % outcome)
    operations = open_operations(tmp_path)
    ended = wait_for_end(operations, start(operations))
    assert ended.state is OperationState(outcome.upper())
    assert (ended.version, ended.reasons, ended.progress) == ("abc", ("because",), ("half way",))
    assert ended.finished_at_ms >= ended.started_at_ms


@pytest.mark.parametrize("outcome", ["promoted", "refused"])
def test_what_was_promoted_is_served_before_it_is_said(
    tmp_path: Path, program: Callable[[str], None], outcome: str
) -> None:
    """Otherwise who hears of it is answered by the version before until the service looks again."""
    program(RESULT % outcome)
    is_begun, said = threading.Event(), list[OperationState]()

    def follow() -> None:
        assert is_begun.wait(PATIENCE_S)
        said.append(operations.get(retraining_id).state)
        raise OSError("no space left")

    operations = open_operations(tmp_path, follow)
    retraining_id = start(operations)
    is_begun.set()
    ended = wait_for_end(operations, retraining_id)
    assert ended.state is OperationState(outcome.upper()), "the service goes on trying by itself"
    assert said == ([OperationState.RUNNING] if outcome == "promoted" else [])


def test_a_process_that_breaks_is_a_failure_with_its_last_output(
    tmp_path: Path, program: Callable[[str], None]
) -> None:
    program("print('error: no data', file=sys.stderr)\nsys.exit(2)")
    operations = open_operations(tmp_path)
    ended = wait_for_end(operations, start(operations))
    assert ended.state is OperationState.FAILED
    assert ended.reasons == ("ended with status 2: error: no data",)
    start(operations)
    operations.close()


def test_a_second_one_is_refused_until_the_first_is_cancelled(tmp_path: Path, program: Callable[[str], None]) -> None:
    program("time.sleep(600)")
    operations = open_operations(tmp_path)
    first = start(operations)
    with pytest.raises(RetrainingBusyError):
        start(operations)
    assert operations.cancel(first).state is OperationState.CANCELLED
    assert operations.cancel(first).state is OperationState.CANCELLED
    assert start(operations) != first
    operations.close()


def test_many_callers_at_once_start_one(tmp_path: Path, program: Callable[[str], None]) -> None:
    program("time.sleep(600)")
    operations = open_operations(tmp_path)
    started: list[str] = []

    def try_to_start() -> None:
        try:
            started.append(start(operations))
        except RetrainingBusyError:
            return

    threads = [threading.Thread(target=try_to_start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1
    operations.close()


def test_the_process_ends_when_the_service_is_gone(tmp_path: Path, program: Callable[[str], None]) -> None:
    """Its pipe closes, however the service went."""
    program("sys.stdin.read()\nprint('the service is gone', file=sys.stderr)\nsys.exit(130)")
    operations = open_operations(tmp_path)
    retraining_id = start(operations)
    process = operations._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert "the service is gone" in wait_for_end(operations, retraining_id).reasons[0]


def test_a_missing_folder_loses_the_record_of_a_retraining_and_no_other_one(
    tmp_path: Path, program: Callable[[str], None]
) -> None:
    program(RESULT % "promoted")
    operations = open_operations(tmp_path)
    shutil.rmtree(tmp_path / "state" / "retrainings")
    for _ in range(2):
        assert wait_for_end(operations, start(operations)).state is OperationState.PROMOTED
    operations.close()


def test_a_process_that_cannot_be_started_has_a_name_and_leaves_the_way_free(
    tmp_path: Path, program: Callable[[str], None]
) -> None:
    program(RESULT % "promoted")
    operations = open_operations(tmp_path)
    Path(sys.executable).chmod(0o644)
    with pytest.raises(ServiceError, match="cannot be started"):
        start(operations)
    Path(sys.executable).chmod(0o755)
    assert wait_for_end(operations, start(operations)).state is OperationState.PROMOTED
    operations.close()


def test_one_that_ran_when_the_service_was_killed_was_interrupted(
    tmp_path: Path, program: Callable[[str], None]
) -> None:
    program("time.sleep(600)")
    killed = open_operations(tmp_path)
    retraining_id = start(killed)
    after = open_operations(tmp_path)
    assert after.get(retraining_id).state is OperationState.INTERRUPTED
    killed.close()


def test_stored_operations_are_bounded_and_damaged_ones_are_dropped(
    tmp_path: Path, program: Callable[[str], None]
) -> None:
    folder = tmp_path / "state" / "retrainings"
    folder.mkdir(parents=True)
    (folder / "damaged.json").write_text("{")
    for number in range(REMEMBERED_MAX + 5):
        old = {
            "retraining_id": f"old-{number}",
            "state": "FAILED",
            "started_at_ms": number,
            "progress": [],
            "reasons": [],
        }
        (folder / f"old-{number}.json").write_text(json.dumps(old))
    program(RESULT % "refused")
    operations = open_operations(tmp_path)
    wait_for_end(operations, start(operations))
    assert len(list(folder.glob("*.json"))) == REMEMBERED_MAX
    with pytest.raises(UnknownRetrainingError):
        operations.get("old-0")


def test_services_on_one_folder_know_when_the_other_one_learned(tmp_path: Path, program: Callable[[str], None]) -> None:
    """Otherwise each would learn the same every week, one after the other."""
    program(RESULT % "promoted")
    one, other = open_operations(tmp_path), open_operations(tmp_path)
    ended = wait_for_end(one, start(one))
    assert other.newest_begun_ms() == ended.started_at_ms


def test_what_an_alarm_starts_learns_its_device_types_and_is_no_learning_of_all(
    tmp_path: Path, program: Callable[[str], None]
) -> None:
    program('print(" ".join(sys.argv), file=sys.stderr)\n' + RESULT % "promoted")
    operations = open_operations(tmp_path)
    begun = operations.start(from_outcomes=True, seed=None, why="an alarm", devices=["a100", "l4"])
    ended = wait_for_end(operations, begun.retraining_id)
    assert "--device a100 --device l4" in ended.progress[0]
    operations.close()
    again = open_operations(tmp_path)
    assert again.get(begun.retraining_id).devices == ("a100", "l4")
    assert again.newest_begun_ms() == begun.started_at_ms
    assert again.newest_begun_ms(of_all_types=True) == 0


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    operations = open_operations(tmp_path)
    with pytest.raises(UnknownRetrainingError):
        operations.cancel("nothing")
    with pytest.raises(InvalidRequestError):
        operations.start(from_outcomes=False, seed=None, why="x" * 501)
