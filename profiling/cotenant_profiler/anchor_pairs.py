"""What the anchors of a calibration lose together: two at a time, each between short windows of either alone.

How much jobs cost one another is a property of the machine as much as of the jobs, and no data set knows the machine at
hand. A pair is measured as campaigns measure theirs. Most are made to wait for half of their steps, as jobs wait for
input: what machines do differently shows more where both have gaps to work in. Both begin at one instant, and two whose
steps take as long would stay in phase: the second one then waits longer.

The windows alone say how long an anchor's step takes once more, half a minute later: the speed of a machine wanders
within seconds, on a slowed core by a sixth from one second to the next. Those in which it waits say what a wait is
worth: the CPU time of a step there, beyond the share of the core that an anchor gets which never waits. And how far
they are apart says how far what a job does together is off from what it did alone at another time.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

from cotenant.device_calibration import Anchor, AnchorPair
from cotenant_profiler import system_clock
from cotenant_profiler.bench import Bench, Load, Measurement
from cotenant_profiler.campaign import Method
from cotenant_profiler.errors import OutOfMemoryError, ProfilerError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.measured_device import MeasuredDevice
from cotenant_profiler.processor_weight import WeightedGroup
from cotenant_profiler.worker_client import WorkerClient
from predictor_service.features.head_start import NO_HEAD_START, HeadStart

FIRST_PAIR_MS: Final = 6_000.0
"""Of the first pair with two forks on a third of a core (5.7 s): with less left nothing is begun."""
WAIT_RATIO: Final = 0.5
_ALIKE_RATIO: Final = 1.25
"""Of two steps up to which they count as alike: 14.0 and 13.9 ms stayed in phase, and lost half, not a quarter."""
_APART_RATIO: Final = 1.27
"""What the second period is then made, in units of the first: near no ratio of small numbers."""
_METHOD: Final = Method(
    window_ms=1_200,
    warm_up_ms=300,
    warm_up_ms_max=1_500,
    warm_in_ms=200,
    reference_ms=300,
    tail_ms=50,
    foreign_ratio_max=0.1,
    speed_change_ratio_max=0.15,
)
_WINDOWS_DIFFER_RATIO: Final = 0.05
_STEPS: Final = 10
_REFERENCE_STEPS: Final = 4
"""Of the longer of both: how many of its steps alone the windows hold at least."""
_COMPUTES_LEAST: Final = 0.1
"""Share of a window's step alone that computes: what is less says more of sleeping than of the network."""
_HEAD_START_WINDOWS: Final = 3
"""Fewer windows with a wait say nothing of what a wait is worth."""
_WANDER_DEGREES: Final = 4
"""With fewer degrees of freedom a deviation is half or twice the true one too often. Three anchors in four pairs have
eleven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowAlone:
    """An anchor alone on the device, before or after a pair.

    Attributes:
        network: Of the anchor.
        computing_ms: How long a step computed on average.
        wait_ms: How long it was made to wait before.
        processor_ms: CPU time of a step.
        length_ms: Of the window.
    """

    network: str
    computing_ms: float
    wait_ms: float
    processor_ms: float
    length_ms: float


@dataclass(slots=True, kw_only=True)
class PairFindings:
    """What measuring pairs found.

    Attributes:
        pairs: What anchors lost to each other, both directions of each.
        alone: Windows in which an anchor ran alone.
    """

    pairs: list[AnchorPair] = field(default_factory=list)
    alone: list[WindowAlone] = field(default_factory=list)

    def head_start(self, anchors: Sequence[Anchor]) -> HeadStart:
        """Return what a wait is worth where the CPU is the device: the median over the windows with one.

        Args:
            anchors: As they were measured before the pairs, without a wait.
        """
        waiting = [each for each in self.alone if each.wait_ms]
        if len(waiting) < _HEAD_START_WINDOWS:
            return NO_HEAD_START
        share = statistics.median(anchor.utilization_ratio for anchor in anchors)
        ahead_ms = statistics.median(each.processor_ms - share * each.computing_ms for each in waiting)
        return HeadStart(device_ms=max(0.0, ahead_ms), share=share)

    @property
    def speed_wander_ratio(self) -> float:
        """How far the speed of the device wanders between windows: the deviation of ln(computing time of a step).

        Pooled over the windows of one anchor with, and of one without, a wait: caches are cold after one. 0 = there
        are too few windows.
        """
        logs: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
        for each in self.alone:
            logs[each.network, each.wait_ms > 0].append(math.log(each.computing_ms))
        degrees = sum(len(group) - 1 for group in logs.values())
        if degrees < _WANDER_DEGREES:
            return 0.0
        squares = sum(statistics.pvariance(group) * len(group) for group in logs.values())
        return math.sqrt(squares / degrees)

    def with_windows_alone(self, anchor: Anchor, window_ms: float, head_start: HeadStart) -> Anchor:
        """Return an anchor with the step that all windows alone give, each by its length, in the geometric mean.

        Args:
            anchor: As it was measured before the pairs.
            window_ms: How long that took.
            head_start: What windows with a wait got beyond the speed of the device.
        """
        found = [each for each in self.alone if each.network == anchor.network]
        steps_ms = [head_start.busy_step_ms(each.computing_ms, each.wait_ms) for each in found]
        logs = [0.0, *(math.log(step_ms / anchor.step_ms) for step_ms in steps_ms)]
        mean = statistics.fmean(logs, [window_ms, *(each.length_ms for each in found)])
        return replace(anchor, step_ms=anchor.step_ms * math.exp(mean))


def measure_pairs(
    device: MeasuredDevice,
    anchors: Sequence[Anchor],
    *,
    remaining_ms: Callable[[], float],
    listener: Callable[[str], None],
    start_worker: Callable[[], WorkerClient],
) -> PairFindings:
    """Measure as many pairs of different anchors as the time holds, once more those that were not believed.

    Whatever goes wrong leaves pairs out, and nothing else: a calibration is worth a lot without them.

    Args:
        device: An open one.
        anchors: As they were measured alone.
        remaining_ms: Time that is left.
        listener: Told of every pair.
        start_worker: Starts a measuring process on the device.
    """
    found = PairFindings()
    needed_ms = FIRST_PAIR_MS
    with Bench(device, WeightedGroup(None, "CPU weight unchanged"), start_worker) as bench:
        turns = deque((*planned, True) for planned in planned_pairs(anchors))
        while turns:
            one, other, wait_ratios, is_first = turns.popleft()
            begin_ns, left_ms, starts_processes = system_clock.now_ns(), remaining_ms(), not bench.has_workers
            if left_ms < needed_ms:
                break
            listener(f"measuring {one.network} with {other.network}")
            bench.limit(left_ms)
            loads = [_load(anchor, ratio) for anchor, ratio in zip((one, other), wait_ratios, strict=True)]
            method = _method(loads, (one, other))
            try:
                together = bench.measure(loads, loads, method)
            except OutOfMemoryError:
                bench.close()  # a late answer would be taken for that of the next pair
                continue
            except ProfilerError:
                break
            believed = pairs_of(loads, together)
            found.pairs += believed
            found.alone += windows_alone(loads, together, method.reference_ms)
            if is_first and not believed:
                turns.append((one, other, wait_ratios, False))
            if not starts_processes:
                # On an H200 the first pair took 14 s, of which two contexts and two networks were 9: no later one does.
                needed_ms = (system_clock.now_ns() - begin_ns) / 1e6
    return found


def planned_pairs(anchors: Sequence[Anchor]) -> Iterator[tuple[Anchor, Anchor, tuple[float, float]]]:
    """Yield which anchors run together and the share that each waits, what says most about other jobs first."""
    for place, (one, other) in enumerate(combinations(anchors, 2)):
        yield one, other, _wait_ratios(one, other)
        if place == 0:
            yield one, other, (0.0, 0.0)


def _wait_ratios(one: Anchor, other: Anchor) -> tuple[float, float]:
    if max(one.step_ms, other.step_ms) > _ALIKE_RATIO * min(one.step_ms, other.step_ms):
        return WAIT_RATIO, WAIT_RATIO
    apart_ms = _APART_RATIO * one.step_ms / (1.0 - WAIT_RATIO)
    return WAIT_RATIO, round(1.0 - other.step_ms / apart_ms, 3)


def pairs_of(loads: Sequence[Load], together: Measurement) -> tuple[AnchorPair, ...]:
    """Return what two anchors lost.

    None where others used the device, the speed of the device changed meanwhile, or either was faster with the other
    one than alone by more than windows differ: what such a measurement says is not about the two. A little faster is
    not slowed down: were these left out, a machine without interference would be said to have some.
    """
    if together.foreign_ratio > _METHOD.foreign_ratio_max:
        return ()
    if any(abs(after / before - 1) > _METHOD.speed_change_ratio_max for before, after in together.references_ms):
        return ()
    lost = [
        figures["step_ms_mean"] / (sum(references) / len(references)) - 1
        for figures, references in zip(together.figures, together.references_ms, strict=True)
    ]
    if min(lost) < -_WINDOWS_DIFFER_RATIO:
        return ()
    jobs = [load.job for load in loads]
    return tuple(
        AnchorPair(
            victim=victim.architecture,
            other=other.architecture,
            slowdown_ratio=max(0.0, ratio),
            input_wait_ratio=victim.input_wait_ratio,
            other_input_wait_ratio=other.input_wait_ratio,
        )
        for victim, other, ratio in zip(jobs, jobs[::-1], lost, strict=True)
    )


def windows_alone(loads: Sequence[Load], together: Measurement, length_ms: float) -> list[WindowAlone]:
    """Return what the anchors computed a step in their windows alone; nothing where others used the device."""
    if together.foreign_ratio > _METHOD.foreign_ratio_max:
        return []
    found = zip(loads, together.references_ms, together.references_processor_ms, strict=True)
    return [
        WindowAlone(
            network=load.job.architecture,
            computing_ms=step_ms - load.wait_ms,
            wait_ms=load.wait_ms,
            processor_ms=processor_ms,
            length_ms=length_ms,
        )
        for load, steps_ms, processors_ms in found
        for step_ms, processor_ms in zip(steps_ms, processors_ms, strict=True)
        if step_ms - load.wait_ms >= _COMPUTES_LEAST * step_ms
    ]


def _load(anchor: Anchor, wait_ratio: float) -> Load:
    job = JobSpec(architecture=anchor.network, batch=anchor.batch_size, input_wait_ratio=wait_ratio)
    return Load(job=job, wait_ms=job.wait_ms(anchor.step_ms))


def _method(loads: Sequence[Load], anchors: Sequence[Anchor]) -> Method:
    """Windows that hold some steps of both."""
    longest_ms = max(anchor.step_ms + load.wait_ms for anchor, load in zip(anchors, loads, strict=True))
    return replace(
        _METHOD,
        window_ms=max(_METHOD.window_ms, round(_STEPS * longest_ms)),
        reference_ms=max(_METHOD.reference_ms, round(_REFERENCE_STEPS * longest_ms)),
    )
