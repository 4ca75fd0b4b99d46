from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from predictor_service.errors import (
    ExtractionBusyError,
    ExtractionClosedError,
    ExtractionCrashedError,
    ExtractionTimeoutError,
    GraphLimitError,
    InvalidBindingError,
    PredictorError,
    UnboundDimensionError,
)
from predictor_service.features.graphs.extraction_messages import decode_error, encode_error
from predictor_service.features.graphs.extraction_pool import ExtractionPool
from predictor_service.features.graphs.extraction_process import ExtractionProcess
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from tests.support.agent import wait_until
from tests.support.hostile_graphs import many_nodes
from tests.support.onnx_graphs import bert_base, perceptron

GOOD = perceptron().SerializeToString()
PATIENCE_S = 240.0
SLOW = many_nodes(19_000)


@pytest.fixture(scope="module")
def pool() -> Iterator[ExtractionPool]:
    with ExtractionPool(workers=2, timeout_s=120.0) as pool:
        yield pool


@pytest.fixture
def hasty_pool() -> Iterator[ExtractionPool]:
    """Gives every graph a tenth of a second: enough for a small one, never enough for SLOW."""
    with ExtractionPool(workers=1, timeout_s=0.1, queue_limit=1) as pool:
        yield pool


def send(pool: ExtractionPool, number: signal.Signals) -> None:
    """Sends a signal to all workers; one that is stopped keeps its request as long as a test wants."""
    for pid in pool.worker_pids:
        os.kill(pid, number)


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set when a worker has been chosen for a request."""
    chosen, describe = threading.Event(), ExtractionProcess.describe

    def announced(worker: ExtractionProcess, data: bytes, bindings: Mapping[str, int]) -> GraphDescription:
        chosen.set()
        return describe(worker, data, bindings)

    monkeypatch.setattr(ExtractionProcess, "describe", announced)
    return chosen


@contextmanager
def stopped_at_work(handed_over: threading.Event, **settings: int) -> Iterator[tuple[ExtractionPool, Future[Any]]]:
    """A pool whose worker has a request and is stopped, and that request."""
    with ExtractionPool(workers=1, timeout_s=120.0, **settings) as pool, ThreadPoolExecutor(1) as threads:
        pool.describe(GOOD)
        send(pool, signal.SIGSTOP)
        handed_over.clear()
        asked = threads.submit(pool.describe, GOOD)
        assert handed_over.wait(PATIENCE_S)
        yield pool, asked
        pool.close()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def has_ended(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def test_a_worker_gives_the_same_answer_as_this_process(pool: ExtractionPool) -> None:
    assert pool.describe(GOOD) == describe_graph(GOOD)


def test_bindings_cross_the_border(pool: ExtractionPool) -> None:
    description = pool.describe(bert_base(tokens="tokens").SerializeToString(), {"tokens": 64})

    assert description.symbols == {"tokens": 64}


@pytest.mark.parametrize(
    ("bindings", "expected"), [({}, UnboundDimensionError), ({"tokens": 0}, InvalidBindingError)], ids=["none", "zero"]
)
def test_errors_cross_the_border_with_class_message_and_remedy(
    pool: ExtractionPool, bindings: dict[str, int], expected: type[PredictorError]
) -> None:
    data = bert_base(tokens="tokens").SerializeToString()
    with pytest.raises(expected) as here:
        describe_graph(data, bindings)

    with pytest.raises(expected) as there:
        pool.describe(data, bindings)

    assert str(there.value) == str(here.value)
    assert there.value.remedy == here.value.remedy
    assert there.value.details == here.value.details


def test_an_error_that_is_not_ours_becomes_a_crash() -> None:
    encoded = encode_error(GraphLimitError("too large", remedy="shrink it")).replace(b"GraphLimitError", b"SystemExit")

    assert type(decode_error(encoded)) is ExtractionCrashedError


def test_many_threads_share_the_workers(pool: ExtractionPool) -> None:
    with ThreadPoolExecutor(8) as threads:
        descriptions = list(threads.map(lambda _: pool.describe(GOOD), range(24)))

    assert all(description == descriptions[0] for description in descriptions)


def test_a_graph_that_takes_too_long_is_ended_and_the_next_one_is_answered(hasty_pool: ExtractionPool) -> None:
    with pytest.raises(ExtractionTimeoutError, match=r"longer than 0\.1 s"):
        hasty_pool.describe(SLOW)

    wait_until(lambda: _answers(hasty_pool), "the next graph is answered")


def test_other_requests_go_on_while_one_is_ended() -> None:
    with ExtractionPool(workers=2, timeout_s=0.5) as pool, ThreadPoolExecutor(1) as threads:
        wait_until(lambda: _answers(pool), "a worker is there")
        slow = threads.submit(pool.describe, many_nodes(20_000))
        wait_until(lambda: _answers(pool), "another graph is answered")

        with pytest.raises(ExtractionTimeoutError):
            slow.result(timeout=PATIENCE_S)


def test_a_worker_that_crashes_is_replaced(pool: ExtractionPool) -> None:
    pool.describe(GOOD)
    killed = pool.worker_pids
    send(pool, signal.SIGKILL)
    wait_until(lambda: all(has_ended(pid) for pid in killed), "the kernel has ended them")

    assert pool.describe(GOOD).nodes == 3


def test_a_worker_that_crashes_at_work_fails_only_its_request(handed_over: threading.Event) -> None:
    with stopped_at_work(handed_over) as (pool, asked):
        send(pool, signal.SIGKILL)

        with pytest.raises(ExtractionCrashedError, match="SIGKILL"):
            asked.result(timeout=PATIENCE_S)
        assert pool.describe(GOOD).nodes == 3


def test_a_graph_that_needs_too_much_memory_is_refused_and_the_next_one_is_answered() -> None:
    with ExtractionPool(workers=1, memory_limit_bytes=120 << 20, timeout_s=120.0) as pool:
        with pytest.raises((GraphLimitError, ExtractionCrashedError), match=r"memory|MiB"):
            pool.describe(SLOW)

        assert pool.describe(GOOD).nodes == 3


def test_a_full_queue_says_when_to_come_back(handed_over: threading.Event) -> None:
    with stopped_at_work(handed_over, queue_limit=0) as (pool, asked):
        with pytest.raises(ExtractionBusyError, match="try again") as caught:
            pool.describe(GOOD)

        assert caught.value.retry_after_ms >= 50
        send(pool, signal.SIGCONT)
        assert asked.result(timeout=PATIENCE_S).nodes == 3


def test_a_closed_pool_refuses_and_leaves_no_process() -> None:
    pool = ExtractionPool(workers=1)
    pool.describe(GOOD)
    pids = pool.worker_pids
    pool.close()

    with pytest.raises(ExtractionClosedError):
        pool.describe(GOOD)
    assert pids
    assert not any(is_running(pid) for pid in pids)


def test_closing_ends_requests_under_way(handed_over: threading.Event) -> None:
    with stopped_at_work(handed_over) as (pool, asked):
        pool.close()

        with pytest.raises(ExtractionClosedError):
            asked.result(timeout=PATIENCE_S)


@pytest.mark.parametrize("settings", [{"workers": 0}, {"queue_limit": -1}, {"timeout_s": 0.0}])
def test_impossible_settings_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="workers >= 1"):
        ExtractionPool(**settings)


def _answers(pool: ExtractionPool) -> bool:
    try:
        pool.describe(GOOD)
    except ExtractionTimeoutError:  # a busy machine
        return False
    return True
