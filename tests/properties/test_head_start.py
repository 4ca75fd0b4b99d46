"""The model of a head start against a core under a CPU quota, simulated period by period as Linux grants it."""

from __future__ import annotations

import itertools
import random
import statistics

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor_service.features.head_start import HeadStart

PERIOD_MS = 5.0
KEPT_MS = 1.0
"""Of its part of the quota a group of processes that sleeps gives all back but this, which is still there later."""
STEPS = 200
ANCHORS_CPU_MS = (6.0, 10.0, 12.0)
ERROR_MS = 1.5
"""Of 3 840 shares, works and waits the mean was 0.18 ms (3.4 ms without a head start); the worst that a search of 3 000
found was 1.27 ms, where a step's work is one and a half quotas: its end hardly varies within the period."""


def step_ms(cpu_ms: float, wait_ms: float, share: float) -> float:
    """Mean step of a job alone that waits and then needs the CPU, both varied about their means."""
    rng = random.Random(1)
    parts = [(place + 0.5) / STEPS - 0.5 for place in range(STEPS)]
    works = [cpu_ms * (1.0 + part) for part in parts]
    waits = [wait_ms + part * min(wait_ms, PERIOD_MS) for part in parts]
    rng.shuffle(works)
    rng.shuffle(waits)
    core = QuotaCore(share)
    for work_ms, pause_ms in zip(works, waits, strict=True):
        core.wait(pause_ms)
        core.compute(work_ms)
    return core.now_ms / STEPS


class QuotaCore:
    """A core of which one group of processes may use a quota per period."""

    def __init__(self, share: float) -> None:
        self.now_ms = 0.0
        self._quota_ms = share * PERIOD_MS
        self._left_ms = self._quota_ms
        self._taken_ms = 0.0
        self._period_ends_ms = PERIOD_MS

    def wait(self, pause_ms: float) -> None:
        """Sleeps; what was taken of the quota goes back but for what is kept."""
        if pause_ms > 0:
            self._left_ms += max(0.0, self._taken_ms - KEPT_MS)
            self._taken_ms = min(self._taken_ms, KEPT_MS)
            self._pass_until(self.now_ms + pause_ms)

    def compute(self, work_ms: float) -> None:
        """Computes for so much CPU time, at full speed until the quota is used, then from the next period on."""
        while work_ms > 1e-9:
            if self._taken_ms <= 1e-12:
                self._taken_ms, self._left_ms = self._left_ms, 0.0
            if self._taken_ms <= 1e-12:
                self._pass_until(self._period_ends_ms)
                continue
            run_ms = min(work_ms, self._taken_ms, self._period_ends_ms - self.now_ms)
            work_ms -= run_ms
            self._taken_ms -= run_ms
            self._pass_until(self.now_ms + run_ms)

    def _pass_until(self, at_ms: float) -> None:
        self.now_ms = at_ms
        while self._period_ends_ms <= at_ms + 1e-9:
            self._left_ms = self._quota_ms
            self._period_ends_ms += PERIOD_MS


def measured(share: float) -> HeadStart:
    """As a calibration measures it: three anchors, each made to wait as long as its step takes without a wait."""
    found_ms = []
    for cpu_ms in ANCHORS_CPU_MS:
        wait_ms = step_ms(cpu_ms, 0.0, share)
        found_ms.append(cpu_ms - share * (step_ms(cpu_ms, wait_ms, share) - wait_ms))
    return HeadStart(device_ms=max(0.0, statistics.median(found_ms)), share=share)


@given(share=st.floats(0.2, 0.7), cpu_ms=st.floats(2.0, 40.0), wait_ms=st.floats(0.5, 60.0))
@settings(deadline=None, max_examples=60)
def test_steps_under_a_quota_are_predicted_from_what_three_anchors_had_ahead(
    share: float, cpu_ms: float, wait_ms: float
) -> None:
    head_start = measured(share)
    found_ms = wait_ms + head_start.computing_ms(cpu_ms / share, wait_ms)
    true_ms = step_ms(cpu_ms, wait_ms, share)
    assert abs(found_ms - true_ms) < ERROR_MS
    busy, true_busy = cpu_ms / found_ms, cpu_ms / true_ms
    assert abs(busy - true_busy) < ERROR_MS / true_ms * true_busy + 0.01


def test_the_mean_error_of_ordinary_steps_is_a_tenth_of_what_it_is_without_a_head_start() -> None:
    errors_ms, errors_without_ms = [], []
    for share in (1 / 3, 0.5, 2 / 3):
        head_start = measured(share)
        for cpu_ms, wait_ms in itertools.product((5.0, 8.0, 12.0, 20.0), (6.0, 14.0, 26.0, 60.0)):
            true_ms = step_ms(cpu_ms, wait_ms, share)
            errors_ms.append(abs(wait_ms + head_start.computing_ms(cpu_ms / share, wait_ms) - true_ms))
            errors_without_ms.append(abs(wait_ms + cpu_ms / share - true_ms))
    assert statistics.fmean(errors_ms) < 0.1 * statistics.fmean(errors_without_ms)


def test_without_a_head_start_waiting_jobs_on_a_third_of_a_core_are_predicted_milliseconds_too_slow() -> None:
    for cpu_ms, wait_ms in ((8.0, 14.0), (10.0, 22.0), (15.0, 26.0)):
        assert wait_ms + 3.0 * cpu_ms - step_ms(cpu_ms, wait_ms, 1 / 3) > 4.0


def test_anchors_on_a_third_and_on_two_thirds_of_a_core_have_two_milliseconds_ahead_and_none_on_a_whole_one() -> None:
    for share in (1 / 3, 2 / 3):
        assert abs(measured(share).device_ms - 2.0) < 0.3
    assert measured(1.0).device_ms < 1e-9
