"""Describes graphs in resident worker processes, so that a hostile one harms only itself.

Shape inference holds the interpreter lock and cannot be interrupted. Each request therefore runs in a process with a
memory limit; one that exceeds its time is killed, and a spare that is already warm takes its place while another spare
starts in the background. Requests on other workers do not notice.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

from cotenant.system_clock import steady_s
from predictor_service.errors import ExtractionBusyError, ExtractionClosedError
from predictor_service.features.graphs.extraction_process import ExtractionProcess
from predictor_service.features.graphs.graph_description import GraphDescription
from predictor_service.features.graphs.graph_limits import DEFAULT_LIMITS, check_graph_bytes

_logger = logging.getLogger(__name__)

_WARM_SPARES: Final = 1
_START_RETRY_S: Final = 1.0
_START_WAIT_S: Final = 120.0


class ExtractionPool:
    """A fixed number of workers and one warm spare; safe for many threads.

    Args:
        workers: Graphs described at the same time, at least 1.
        memory_limit_bytes: Private memory of one worker, libraries included.
        timeout_s: Wall-clock seconds for one graph; also its CPU seconds.
        queue_limit: Requests that may wait for a worker; 0 = none.
    """

    def __init__(
        self,
        workers: int = 1,
        memory_limit_bytes: int = 1 << 30,
        timeout_s: float = 10.0,
        queue_limit: int = 64,
    ) -> None:
        if workers < 1 or queue_limit < 0 or timeout_s <= 0:
            raise ValueError("a pool needs workers >= 1, queue_limit >= 0 and timeout_s > 0")
        self._workers = workers
        self._memory_limit_bytes = memory_limit_bytes
        self._timeout_s = timeout_s
        self._admitted_limit = workers + queue_limit
        self._running = threading.Semaphore(workers)
        self._idle: queue.SimpleQueue[ExtractionProcess] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._alive: set[ExtractionProcess] = set()
        self._admitted = 0
        self._recent_s = 0.01
        for _ in range(workers + _WARM_SPARES):
            self._orders.put(True)
        self._starter = threading.Thread(target=self._start_ordered, name="extraction-starter", daemon=True)
        self._starter.start()

    def describe(self, data: bytes, bindings: Mapping[str, int] | None = None) -> GraphDescription:
        """Describes a graph as `describe_graph` does, in a worker.

        Args:
            data: Serialized model, weights not needed.
            bindings: Sizes of named dimensions.

        Raises:
            CallerError: As `describe_graph`.
            ExtractionBusyError: The queue is full; `retry_after_ms` states when to come back.
            ExtractionTimeoutError: The graph took too long.
            ExtractionCrashedError: The worker crashed on the graph.
            ExtractionClosedError: The pool is closed.
        """
        check_graph_bytes(data, DEFAULT_LIMITS)
        with self._admission(), self._running, self._worker() as worker:
            started_s = steady_s()
            description = worker.describe(data, bindings or {})
            self._recent_s += 0.1 * (steady_s() - started_s - self._recent_s)
            return description

    @property
    def worker_pids(self) -> frozenset[int]:
        """Process ids of all workers, the spare included."""
        with self._lock:
            return frozenset(worker.pid for worker in self._alive)

    def close(self) -> None:
        """Ends all workers; requests under way fail with `ExtractionClosedError`."""
        self._closing.set()
        self._orders.put(False)
        with self._lock:
            remaining = list(self._alive)
        for worker in remaining:
            worker.kill()
        self._starter.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _admission(self) -> Iterator[None]:
        """A place in the queue or at a worker."""
        with self._lock:
            if self._closing.is_set():
                raise _closed()
            if self._admitted >= self._admitted_limit:
                raise self._busy()
            self._admitted += 1
        try:
            yield
        finally:
            with self._lock:
                self._admitted -= 1

    @contextmanager
    def _worker(self) -> Iterator[ExtractionProcess]:
        """A running worker; one that is not healthy afterwards is replaced."""
        worker = self._take_living()
        try:
            yield worker
        except Exception:
            if self._closing.is_set():
                raise _closed() from None
            raise
        finally:
            if worker.healthy:
                self._idle.put(worker)
            else:
                self._replace(worker)

    def _take_living(self) -> ExtractionProcess:
        deadline_s = steady_s() + _START_WAIT_S
        while not self._closing.is_set():
            try:
                worker = self._idle.get(timeout=0.1)
            except queue.Empty:
                if steady_s() > deadline_s:
                    raise self._busy() from None
                continue
            if worker.is_alive():
                return worker
            self._replace(worker)
        raise _closed()

    def _replace(self, worker: ExtractionProcess) -> None:
        self._orders.put(True)
        worker.kill()
        with self._lock:
            self._alive.discard(worker)

    def _start_ordered(self) -> None:
        """Runs in its own thread: starting a worker takes about a second of importing."""
        while self._orders.get() and not self._closing.is_set():
            if not self._start_one():
                self._orders.put(True)
                self._closing.wait(_START_RETRY_S)

    def _start_one(self) -> bool:
        try:
            worker = ExtractionProcess(memory_limit_bytes=self._memory_limit_bytes, timeout_s=self._timeout_s)
        except OSError as error:
            _logger.error("extraction_worker_not_started", extra={"reason": str(error)})
            return False
        with self._lock:
            self._alive.add(worker)
        if worker.wait_until_ready() and not self._closing.is_set():
            self._idle.put(worker)
            return True
        if not self._closing.is_set():
            _logger.error("extraction_worker_not_ready", extra={"retry_after_s": _START_RETRY_S})
        worker.kill()
        with self._lock:
            self._alive.discard(worker)
        return False

    def _busy(self) -> ExtractionBusyError:
        retry_after_ms = round(1000 * max(self._recent_s * self._admitted_limit / self._workers, 0.05))
        return ExtractionBusyError(
            f"{self._admitted_limit} graphs are being described or wait for it",
            remedy=f"try again in {retry_after_ms} ms",
            details={"retry_after_ms": str(retry_after_ms)},
        )


def _closed() -> ExtractionClosedError:
    return ExtractionClosedError(
        "the extraction pool is closed", remedy="the service is shutting down; try another one"
    )
