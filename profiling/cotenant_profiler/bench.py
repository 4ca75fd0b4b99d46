"""The measuring bench: resident workers on the device core, and one method for everything that they measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from cotenant_profiler import system_clock
from cotenant_profiler.campaign import Method
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.measured_device import DeviceWindow, EndOfWatch, MeasuredDevice
from cotenant_profiler.processor_weight import WeightedGroup
from cotenant_profiler.worker_client import START_TIMEOUT_MS, WorkerClient

# Time for the commands to reach every worker before the common start.
LEAD_MS = 40
SOLO_WARM_IN_MS = 200
REFERENCE_WARM_IN_MS = 80
RATE_TOLERANCE_RATIO = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A job with the waiting that it has in this campaign.

    Attributes:
        job: The job.
        wait_ms: Waiting per step, 0 or more.
    """

    job: JobSpec
    wait_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What came out of one attempt.

    Attributes:
        figures: One mapping per job.
        references_ms: Mean step times of the references, (before, after) each.
        references_processor_ms: CPU time of such a step, likewise.
        foreign_ratio: Share of the device that other processes took, over all measurement windows.
        elsewhere_ratio: How busy the other cores were.
        flags: Reasons for doubt.
    """

    figures: tuple[dict[str, float], ...]
    references_ms: tuple[tuple[float, float], ...] = ()
    references_processor_ms: tuple[tuple[float, float], ...] = ()
    foreign_ratio: float = 0.0
    elsewhere_ratio: float = 0.0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _MeasurementWindow:
    """Jobs that ran together for one window, and what else the machine did in it."""

    figures: tuple[dict[str, float], ...]
    window_ms: int
    window: DeviceWindow


class Bench:
    """Measures jobs on one device.

    Args:
        device: An open one.
        group: Of all measuring processes.
        start_worker: Starts one that stays; None = by itself, as those for memory always start.
    """

    def __init__(
        self, device: MeasuredDevice, group: WeightedGroup, start_worker: Callable[[], WorkerClient] | None = None
    ) -> None:
        self._device = device
        self._group = group
        self._start_worker = start_worker or (lambda: WorkerClient(device.place))
        self._workers: list[WorkerClient] = []
        self._until_ns: int | None = None

    @property
    def has_workers(self) -> bool:
        """Whether processes for two jobs run already."""
        return len(self._workers) > 1

    def limit(self, time_ms: float) -> None:
        """Give up what is asked from now on after this time: a later answer is a WorkerError. Close the bench then."""
        self._until_ns = system_clock.now_ns() + round(1e6 * time_ms)

    def measure(self, loads: Sequence[Load], references: Sequence[Load], method: Method) -> Measurement:
        """Run jobs together, or one alone, between two measurements of the references alone.

        The speed of a machine changes within minutes, by half where other tenants run on it. What counts is
        therefore the ratio to references measured seconds before and after, in the same processes.

        Args:
            loads: The jobs of the run.
            references: Jobs measured alone before and after; the one with index i runs in the process of job i.
            method: How to measure.

        Raises:
            WorkerError: A worker ended, was silent or could not carry out the job.
        """
        workers = self._at_least(len(loads))
        steady = [self._prepare(worker, load, method) for worker, load in zip(workers, loads, strict=True)]
        before = [self._alone(worker, load, method) for worker, load in zip(workers, references, strict=True)]
        tail_ms = method.tail_ms if len(loads) > 1 else 0
        warm_in_ms = method.warm_in_ms if len(loads) > 1 else SOLO_WARM_IN_MS
        main = self._together(workers, loads, (warm_in_ms, method.window_ms, tail_ms))
        after = [self._alone(worker, load, method) for worker, load in zip(workers, references, strict=True)]
        windows = [*before, main, *after]
        # What a device reports is about all jobs on it: it describes a job only while the job is alone.
        reported = main.window.figures() if len(loads) == 1 else {}
        return Measurement(
            figures=tuple({**figures, **reported} for figures in main.figures),
            references_ms=tuple((_step_ms(old), _step_ms(new)) for old, new in zip(before, after, strict=True)),
            references_processor_ms=tuple(
                (_processor_ms(old), _processor_ms(new)) for old, new in zip(before, after, strict=True)
            ),
            foreign_ratio=_over_time(
                [measurement_window.window.foreign_ratio for measurement_window in windows], windows
            ),
            elsewhere_ratio=_over_time(
                [measurement_window.window.elsewhere_ratio for measurement_window in windows], windows
            ),
            flags=(*_flags(main.figures, steady), *main.window.flags),
        )

    def measure_memory(self, job: JobSpec, method: Method) -> Measurement:
        """Return the peak memory of a job: a property of a process, hence measured in a fresh one."""
        with WorkerClient(self._device.place) as worker:
            self._group.add(worker.pid)
            figures: dict[str, Any] = worker.ask("memory", self._answer_ms(), job=job, steps=method.memory_steps)
            held_bytes = self._device.memory_bytes(worker.pid)
        if held_bytes is not None:
            figures["context_bytes"] = max(0, held_bytes - figures["reserved_bytes"])
        return Measurement(figures=(figures,))

    def measure_trace(self, load: Load, method: Method) -> Measurement:
        """Return samples of a job's memory at random instants, one mapping each, from a fresh process.

        That process hands freed blocks back at once, so that what is resident follows what is allocated.
        """
        with WorkerClient(self._device.place, keeps_freed_memory=False) as worker:
            self._group.add(worker.pid)
            answer = worker.ask(
                "trace",
                job=load.job,
                wait_ms=load.wait_ms,
                samples=method.trace_samples,
                steps_min=method.trace_steps,
                duration_ms_max=method.trace_ms_max,
            )
        return Measurement(figures=tuple(answer["samples"]))

    def close(self) -> None:
        """End all workers; the next measurement starts new ones."""
        while self._workers:
            self._workers.pop().close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _at_least(self, count: int) -> list[WorkerClient]:
        while len(self._workers) < count:
            worker = self._start_worker()
            self._workers.append(worker)
            self._group.add(worker.pid)
        return self._workers[:count]

    def _prepare(self, worker: WorkerClient, load: Load, method: Method) -> bool:
        answer = worker.ask(
            "prepare",
            self._answer_ms(),
            job=load.job,
            steps_min=method.warm_up_steps,
            duration_ms_min=method.warm_up_ms,
            duration_ms_max=method.warm_up_ms_max,
        )
        return bool(answer["steady"])

    def _alone(self, worker: WorkerClient, load: Load, method: Method) -> _MeasurementWindow:
        self._prepare(worker, load, method)
        return self._together([worker], [load], (REFERENCE_WARM_IN_MS, method.reference_ms, 0))

    def _together(
        self, workers: Sequence[WorkerClient], loads: Sequence[Load], duration_ms: tuple[int, int, int]
    ) -> _MeasurementWindow:
        """Run loads from one common instant on; the durations are warm-in, window and tail."""
        warm_in_ms, window_ms, tail_ms = duration_ms
        start_ns = system_clock.now_ns() + LEAD_MS * 1_000_000
        times = {"start_ns": start_ns, "warm_in_ms": warm_in_ms, "window_ms": window_ms, "tail_ms": tail_ms}
        for worker, load in zip(workers, loads, strict=True):
            worker.send("measure", job=load.job, wait_ms=load.wait_ms, **times)
        window = self._watch(start_ns + warm_in_ms * 1_000_000, window_ms)
        figures = tuple(worker.receive(self._answer_ms()) for worker in workers)
        return _MeasurementWindow(figures, window_ms, window)

    def _answer_ms(self) -> float:
        """How long an answer may take."""
        if self._until_ns is None:
            return START_TIMEOUT_MS
        return min(START_TIMEOUT_MS, max(0.0, (self._until_ns - system_clock.now_ns()) / 1e6))

    def _watch(self, begin_ns: int, window_ms: int) -> DeviceWindow:
        """Sleep through the window and return what the device reports about it."""
        pids = [worker.pid for worker in self._workers]
        system_clock.sleep_until_ns(begin_ns)
        end: EndOfWatch = self._device.watch(pids)
        system_clock.sleep_until_ns(begin_ns + window_ms * 1_000_000)
        return end()


def _step_ms(measurement_window: _MeasurementWindow) -> float:
    return measurement_window.figures[0]["step_ms_mean"]


def _processor_ms(measurement_window: _MeasurementWindow) -> float:
    return measurement_window.figures[0]["utilization_ratio"] * _step_ms(measurement_window)


def _over_time(ratios: Sequence[float], windows: Sequence[_MeasurementWindow]) -> float:
    """Mean of a ratio over windows of different length."""
    weighted = sum(
        ratio * measurement_window.window_ms for ratio, measurement_window in zip(ratios, windows, strict=True)
    )
    return weighted / sum(measurement_window.window_ms for measurement_window in windows)


def _flags(figures: Sequence[dict[str, float]], steady: Sequence[bool]) -> tuple[str, ...]:
    flags = []
    if not all(steady):
        flags.append("unsteady")
    if any(abs(figure["rate_check_ratio"] - 1) > RATE_TOLERANCE_RATIO for figure in figures):
        flags.append("rate_mismatch")
    return tuple(flags)
