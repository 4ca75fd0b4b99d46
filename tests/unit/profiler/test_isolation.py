from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cotenant_profiler import system_clock
from cotenant_profiler.bench import Bench, Load
from cotenant_profiler.campaign import Method
from cotenant_profiler.isolation import CoreReading, elsewhere_ratio, foreign_ratio
from cotenant_profiler.processor_weight import WeightedGroup
from cotenant_profiler.standin_device import StandinDevice

from cotenant.idle_cores import idle_times_ns
from tests.support.profiler import LENET

STATISTICS = """\
cpu  300 0 100 5000 10 0 5 5 0 0
cpu0 100 0 50 2500 5 0 0 5 0 0
cpu1 200 10 50 2500 5 1 5 4 7 3
intr 12345
"""
MS = 1_000_000
UNWEIGHTED = WeightedGroup(None, "test")


def reading(at_ms: int, idle_ms: int, own_ms: int, elsewhere_idle_ms: int = 0) -> CoreReading:
    return CoreReading(
        at_ns=at_ms * MS, idle_ns=idle_ms * MS, own_ns=own_ms * MS, elsewhere_idle_ns=elsewhere_idle_ms * MS
    )


def test_idle_time_is_what_a_core_waited_for_work_or_for_the_disk() -> None:
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert idle_times_ns(STATISTICS) == {0: 2505 * tick_ns, 1: 2505 * tick_ns}


def test_a_core_that_worked_for_us_only_has_no_foreign_load() -> None:
    assert foreign_ratio(reading(0, 0, 0), reading(1000, 10, 990)) == 0


def test_a_colocated_process_in_the_idle_gaps_of_a_waiting_job_is_seen() -> None:
    assert foreign_ratio(reading(0, 0, 0), reading(1000, 100, 400)) == pytest.approx(0.5)


def test_ticks_that_meet_a_job_under_a_quota_too_often_are_no_load_of_others() -> None:
    """The texts are of a busy loop with a third of a core, period 5 ms: 60 of 126 ticks in a second."""
    before, after = (idle_times_ns(f"cpu0 {busy} 0 0 {idle} 0 0 0 0 0 0")[0] for busy, idle in ((0, 0), (60, 66)))
    one_second = CoreReading(at_ns=1000 * MS, idle_ns=after, own_ns=340 * MS, elsewhere_idle_ns=0)
    assert foreign_ratio(CoreReading(at_ns=0, idle_ns=before, own_ns=0, elsewhere_idle_ns=0), one_second) == 0


def test_load_elsewhere_is_the_mean_over_the_other_cores() -> None:
    assert elsewhere_ratio(reading(0, 0, 0, 0), reading(1000, 0, 0, 750)) == pytest.approx(0.25)


def test_the_processor_time_of_another_process_is_read_exactly() -> None:
    before_ns = system_clock.own_processor_time_ns()
    read_ns = system_clock.processor_time_ns(os.getpid())
    assert before_ns <= read_ns <= system_clock.own_processor_time_ns()


@pytest.mark.endurance
def test_a_busy_loop_on_the_device_core_is_measured_as_foreign_load() -> None:
    device = StandinDevice()
    method = Method(warm_up_steps=3, warm_up_ms=50, warm_up_ms_max=300, window_ms=1000)
    loop = f"import os\nos.sched_setaffinity(0, {{{device.core}}})\nwhile True: pass"
    with Bench(device, UNWEIGHTED) as bench, subprocess.Popen([sys.executable, "-c", loop]) as other_process:
        try:
            measured = bench.measure([Load(job=LENET)], [Load(job=LENET)], method)
        finally:
            other_process.kill()
    assert measured.foreign_ratio > method.foreign_ratio_max
