from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cotenant_profiler import system_clock
from cotenant_profiler.bench import Bench, Load
from cotenant_profiler.campaign import Method
from cotenant_profiler.isolation import CoreReading, busy_times_ns, elsewhere_ratio, foreign_ratio
from cotenant_profiler.processor_weight import WeightedGroup
from cotenant_profiler.standin_device import StandinDevice

from tests.support.profiler import LENET

STATISTICS = """\
cpu  300 0 100 5000 10 0 5 5 0 0
cpu0 100 0 50 2500 5 0 0 5 0 0
cpu1 200 10 50 2500 5 1 5 4 7 3
intr 12345
"""
MS = 1_000_000
UNWEIGHTED = WeightedGroup(None, "test")


def reading(at_ms: int, busy_ms: int, own_ms: int, elsewhere_ms: int = 0) -> CoreReading:
    return CoreReading(at_ns=at_ms * MS, busy_ns=busy_ms * MS, own_ns=own_ms * MS, elsewhere_ns=elsewhere_ms * MS)


def test_busy_time_leaves_out_idle_waiting_and_what_guests_count_twice() -> None:
    tick_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert busy_times_ns(STATISTICS) == {0: 155 * tick_ns, 1: 270 * tick_ns}


def test_a_core_that_worked_for_us_only_has_no_foreign_load() -> None:
    assert foreign_ratio(reading(0, 0, 0), reading(1000, 990, 990)) == 0


def test_a_colocated_process_in_the_idle_gaps_of_a_waiting_job_is_seen() -> None:
    assert foreign_ratio(reading(0, 0, 0), reading(1000, 900, 400)) == pytest.approx(0.5)


def test_load_elsewhere_is_the_mean_over_the_other_cores() -> None:
    assert elsewhere_ratio(reading(0, 0, 0, 0), reading(1000, 0, 0, 250)) == pytest.approx(0.25)


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
