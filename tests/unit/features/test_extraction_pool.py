from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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
from predictor_service.features.extraction_messages import decode_error, encode_error
from predictor_service.features.extraction_pool import ExtractionPool
from predictor_service.features.graph_description import describe_graph
from tests.support.hostile_graphs import many_nodes
from tests.support.onnx_graphs import bert_base, perceptron

GOOD = perceptron().SerializeToString()
SLOW = many_nodes(19_000)


@pytest.fixture(scope="module")
def pool() -> Iterator[ExtractionPool]:
    with ExtractionPool(workers=2, timeout_s=30.0) as pool:
        yield pool


@pytest.fixture
def hasty_pool() -> Iterator[ExtractionPool]:
    """Gives every graph a tenth of a second: enough for a small one, never enough for SLOW."""
    with ExtractionPool(workers=1, timeout_s=0.1, queue_limit=1) as pool:
        yield pool


def kill_workers(pool: ExtractionPool) -> None:
    for pid in pool.worker_pids:
        os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
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

    assert any(_answers(hasty_pool) for _ in range(20))


def test_other_requests_go_on_while_one_is_ended() -> None:
    with ExtractionPool(workers=2, timeout_s=0.5) as pool, ThreadPoolExecutor(1) as threads:
        pool.describe(GOOD)
        slow = threads.submit(pool.describe, many_nodes(20_000))
        answered = sum(_answers(pool) for _ in range(5))

        with pytest.raises(ExtractionTimeoutError):
            slow.result(timeout=30)
        assert answered >= 1


def test_a_worker_that_crashes_is_replaced(pool: ExtractionPool) -> None:
    pool.describe(GOOD)
    kill_workers(pool)
    time.sleep(0.2)  # until the kernel has ended them

    assert pool.describe(GOOD).nodes == 3


def test_a_worker_that_crashes_at_work_fails_only_its_request() -> None:
    with ExtractionPool(workers=1, timeout_s=30.0) as pool, ThreadPoolExecutor(1) as threads:
        pool.describe(GOOD)
        slow = threads.submit(pool.describe, SLOW)
        time.sleep(0.05)
        kill_workers(pool)

        with pytest.raises(ExtractionCrashedError, match="SIGKILL"):
            slow.result(timeout=30)
        assert pool.describe(GOOD).nodes == 3


def test_a_graph_that_needs_too_much_memory_is_refused_and_the_next_one_is_answered() -> None:
    with ExtractionPool(workers=1, memory_limit_bytes=120 << 20, timeout_s=30.0) as pool:
        with pytest.raises((GraphLimitError, ExtractionCrashedError), match=r"memory|MiB"):
            pool.describe(SLOW)

        assert pool.describe(GOOD).nodes == 3


def test_a_full_queue_says_when_to_come_back() -> None:
    with ExtractionPool(workers=1, timeout_s=30.0, queue_limit=0) as pool, ThreadPoolExecutor(1) as threads:
        pool.describe(GOOD)
        slow = threads.submit(pool.describe, SLOW)
        time.sleep(0.05)

        with pytest.raises(ExtractionBusyError, match="try again") as caught:
            pool.describe(GOOD)

        assert caught.value.retry_after_ms >= 50
        assert slow.result(timeout=30).nodes == 19_000


def test_a_closed_pool_refuses_and_leaves_no_process() -> None:
    pool = ExtractionPool(workers=1)
    pool.describe(GOOD)
    pids = pool.worker_pids
    pool.close()

    with pytest.raises(ExtractionClosedError):
        pool.describe(GOOD)
    assert pids
    assert not any(is_running(pid) for pid in pids)


def test_closing_ends_requests_under_way() -> None:
    pool = ExtractionPool(workers=1, timeout_s=30.0)
    pool.describe(GOOD)
    failed: list[Exception] = []

    def ask() -> None:
        try:
            pool.describe(SLOW)
        except ExtractionClosedError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.05)
    pool.close()
    thread.join(timeout=10)

    assert len(failed) == 1


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
