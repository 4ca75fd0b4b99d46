from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from cotenant_agent.devices.import_baseline import ImportBaseline
from cotenant_agent.devices.standin_inventory import StandinInventory, _foreign_ratio
from cotenant_agent.records import AttemptKey, JobProcesses, JobUsage
from tests.support.fake_devices import FakeProcess, FakeProcesses

KEY = AttemptKey(job_id="job", attempt=1, fence=1)


def build(
    processes: FakeProcesses, baseline_of: Callable[[str], ImportBaseline | None] = lambda _: None
) -> StandinInventory:
    core = min(os.sched_getaffinity(0))
    baseline = ImportBaseline(resident_bytes=300, ended_bytes=400)
    return StandinInventory(
        node_id="n",
        cores=[core],
        memory_bytes=1000,
        baseline=baseline,
        processes=processes,
        baseline_of=baseline_of,
    )


def test_memory_is_what_the_tree_holds_beyond_an_empty_import() -> None:
    processes = FakeProcesses()
    processes.table = {1: FakeProcess(1, resident_bytes=500), 2: FakeProcess(2, resident_bytes=400)}
    inventory = build(processes)
    reading = inventory.observe({KEY: JobProcesses(gpu_ids=("standin-n-0",), pids=(1, 2))})
    assert reading.jobs[KEY].memory_bytes == 300
    assert reading.gpus[0].memory_used_bytes == 300


def test_what_libraries_page_in_at_the_end_of_a_process_is_no_peak_of_its_job() -> None:
    assert build(FakeProcesses()).peak_bytes(900) == 500


def test_what_a_job_holds_at_one_look_only_is_not_what_it_works_with() -> None:
    processes = FakeProcesses()
    inventory, job = build(processes), {KEY: JobProcesses(gpu_ids=("standin-n-0",), pids=(1,))}
    held = []
    for resident_bytes in (500, 500, 900, 500, 600, 700):
        processes.table = {1: FakeProcess(1, resident_bytes=resident_bytes)}
        held.append(inventory.observe(job).jobs[KEY].memory_bytes)
    assert held == [200, 200, 200, 200, 200, 300]


def test_each_rank_of_a_gang_fills_a_device_of_its_own() -> None:
    processes = FakeProcesses()
    processes.table = {pid: FakeProcess(pid, resident_bytes=size) for pid, size in ((1, 500), (2, 700), (3, 50))}
    gang = JobProcesses(gpu_ids=("standin-n-0", "standin-n-1"), pids=(1, 2, 3), rank_pids=((1,), (2, 3)))
    assert build(processes).observe({KEY: gang}).jobs[KEY].memory_bytes == 400


def test_a_launcher_and_compilers_that_import_the_framework_hold_nothing_of_a_device() -> None:
    processes = FakeProcesses()
    sizes = {1: 310, 2: 500, 3: 300, 4: 300, 5: 20}
    processes.table = {pid: FakeProcess(pid, resident_bytes=size) for pid, size in sizes.items()}
    job = JobProcesses(gpu_ids=("standin-n-0",), pids=(1, 2, 3, 4, 5))
    assert build(processes).observe({KEY: job}).jobs[KEY].memory_bytes == 200 + 10


@pytest.mark.parametrize(("ranks", "memory_bytes"), [((None, 0, 1, 1), 250), ((None, 0, 0, 0), 450)])
def test_ranks_that_a_launcher_has_started_fill_a_device_each(ranks: tuple[int | None, ...], memory_bytes: int) -> None:
    processes = FakeProcesses()
    sizes = (310, 490, 500, 350)
    for pid, (size, rank) in enumerate(zip(sizes, ranks, strict=True), start=1):
        processes.table[pid] = FakeProcess(pid, resident_bytes=size, local_rank=rank)
    job = JobProcesses(gpu_ids=("standin-n-0", "standin-n-1"), pids=(1, 2, 3, 4))
    assert build(processes).observe({KEY: job}).jobs[KEY].memory_bytes == memory_bytes


def test_the_first_look_at_a_job_knows_no_utilization() -> None:
    processes = FakeProcesses()
    processes.table = {1: FakeProcess(1)}
    reading = build(processes).observe({KEY: JobProcesses(gpu_ids=("standin-n-0",), pids=(1,))})
    assert reading.jobs[KEY].utilization_ratio is None


def test_a_job_on_a_core_sees_no_gpu_of_the_machine() -> None:
    environment = build(FakeProcesses()).bind(["standin-n-0"]).environment
    assert environment["CUDA_VISIBLE_DEVICES"] == ""


def test_utilization_never_passes_one() -> None:
    processes = FakeProcesses()
    processes.table = {1: FakeProcess(1)}
    inventory, job = build(processes), {KEY: JobProcesses(gpu_ids=("standin-n-0",), pids=(1,))}
    inventory.observe(job)
    processes.table[1].cpu_s = 1000.0
    assert inventory.observe(job).jobs[KEY].utilization_ratio == 1.0


@pytest.mark.parametrize(
    ("busy_ratio", "own", "expected"),
    [(0.9, (0.5, 0.3), 0.1), (0.4, (0.5,), 0.0), (0.9, (None,), None), (None, (), None)],
)
def test_what_a_core_does_beyond_its_jobs_is_foreign(
    busy_ratio: float | None, own: tuple[float | None, ...], expected: float | None
) -> None:
    found = _foreign_ratio(busy_ratio, [JobUsage(utilization_ratio=value) for value in own])
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_job_is_pinned_and_gets_one_thread_per_core() -> None:
    binding = build(FakeProcesses()).bind(["standin-n-0"])
    assert binding.cpu_cores == (min(os.sched_getaffinity(0)),)
    assert binding.environment["OMP_NUM_THREADS"] == "1"
    assert build(FakeProcesses()).bind([]).environment == {}


def test_a_living_job_below_the_baseline_holds_a_byte_because_nothing_means_unknown() -> None:
    processes = FakeProcesses()
    processes.table = {1: FakeProcess(1, resident_bytes=200)}
    inventory, job = build(processes), {KEY: JobProcesses(gpu_ids=("standin-n-0",), pids=(1,))}
    assert inventory.observe(job).jobs[KEY].memory_bytes == 1
    assert inventory.peak_bytes(200) == 1
    processes.table = {}
    assert inventory.observe(job).jobs[KEY].memory_bytes == 0


def test_a_job_of_another_interpreter_counts_from_what_that_imports_once_it_is_known() -> None:
    processes = FakeProcesses()
    processes.table = {1: FakeProcess(1, resident_bytes=700)}
    known = {"/own/bin/python": None, "/other/bin/python": ImportBaseline(resident_bytes=600, ended_bytes=650)}
    for interpreter, memory_bytes, peak_bytes in (("/own/bin/python", 400, 500), ("/other/bin/python", 100, 250)):
        inventory = build(processes, known.get)
        job = JobProcesses(gpu_ids=("standin-n-0",), pids=(1,), interpreter=interpreter)
        assert inventory.observe({KEY: job}).jobs[KEY].memory_bytes == memory_bytes
        assert inventory.peak_bytes(900, interpreter) == peak_bytes
