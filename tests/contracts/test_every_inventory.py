"""What every inventory of devices promises: stand-in cores, NVIDIA's binding over a fake driver, a fake in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cotenant_agent.devices.gpu_inventory import GpuInventory, SeveralInventories
from cotenant_agent.devices.import_baseline import NO_BASELINE
from cotenant_agent.devices.nvml_inventory import NvmlInventory
from cotenant_agent.devices.standin_inventory import StandinInventory
from cotenant_agent.errors import DeviceError
from cotenant_agent.processes import LinuxProcesses
from cotenant_agent.records import AttemptKey, JobProcesses
from tests.support.fake_devices import FakeInventory
from tests.support.fake_driver import FakeDriver, build_library, load_library

KEY = AttemptKey(job_id="job", attempt=1, fence=1)


@dataclass
class Bench:
    """An inventory of two devices, the second one broken, and this test process as a job on the first."""

    inventory: GpuInventory
    let_time_pass: Callable[[], None]

    @property
    def ids(self) -> list[str]:
        return [gpu.gpu_id for gpu in self.inventory.describe()]

    @property
    def job(self) -> JobProcesses:
        return JobProcesses(gpu_ids=(self.ids[0],), pids=(os.getpid(),))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("driver"))


def burn() -> None:
    """Use some CPU time, so that the kernel's coarse counters move."""
    start = os.times().user
    while os.times().user - start < 0.05:
        sum(range(10_000))


@pytest.fixture(params=["standin", "nvml", "memory", "several"])
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    if request.param == "nvml":
        monkeypatch.setenv("FAKE_NVML_STATE", "")
        load_library(library)
        driver = FakeDriver(tmp_path / "driver.txt")
        driver.add_gpu("GPU-a", total_bytes=8 << 30, used_bytes=1 << 30, percent=40)
        driver.add_gpu("GPU-b", total_bytes=8 << 30)
        driver.add_process("GPU-a", os.getpid(), used_bytes=1 << 30, percent=30)
        found = Bench(NvmlInventory(), driver.advance)
        driver.lose("GPU-b")
    elif request.param == "standin":
        core = min(os.sched_getaffinity(0))
        standin = StandinInventory(
            node_id="n", cores=[core, 100_000], memory_bytes=1 << 30, baseline=NO_BASELINE, processes=LinuxProcesses()
        )
        found = Bench(standin, burn)
    else:
        fake = FakeInventory(["fake-a", "fake-b"])
        fake.faults["fake-b"] = "it smokes"
        fake.memory_of_pid[os.getpid()] = 1 << 20
        found = Bench(SeveralInventories([fake]) if request.param == "several" else fake, lambda: None)
    found.inventory.observe({})
    yield found
    found.inventory.close()


def test_devices_have_distinct_names_and_count_from_zero(bench: Bench) -> None:
    gpus = bench.inventory.describe()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert len({gpu.gpu_id for gpu in gpus}) == 2
    assert all(gpu.memory_bytes > 0 and gpu.device for gpu in gpus)


def test_a_broken_device_stays_in_the_list_with_its_fault(bench: Bench) -> None:
    good, broken = bench.inventory.describe()
    assert (good.healthy, good.fault) == (True, "")
    assert not broken.healthy
    assert broken.fault


def test_every_device_is_read_and_a_broken_one_shows_its_fault(bench: Bench) -> None:
    good, broken = bench.inventory.observe({}).gpus
    assert good.healthy
    assert good.memory_used_bytes is not None
    assert (broken.healthy, bool(broken.fault)) == (False, True)


def test_a_working_job_uses_memory_and_a_share_of_its_device(bench: Bench) -> None:
    bench.inventory.observe({KEY: bench.job})
    bench.let_time_pass()
    usage = bench.inventory.observe({KEY: bench.job}).jobs[KEY]
    assert usage.memory_bytes is not None
    assert usage.memory_bytes > 0
    assert usage.utilization_ratio is not None
    assert 0 < usage.utilization_ratio <= 1


def test_a_job_without_processes_uses_nothing(bench: Bench) -> None:
    idle = JobProcesses(gpu_ids=(bench.ids[0],), pids=())
    bench.inventory.observe({KEY: idle})
    bench.let_time_pass()
    usage = bench.inventory.observe({KEY: idle}).jobs[KEY]
    assert (usage.memory_bytes, usage.utilization_ratio) == (0, 0.0)


def test_only_jobs_that_were_asked_for_are_answered(bench: Bench) -> None:
    assert dict(bench.inventory.observe({}).jobs) == {}


def test_a_binding_differs_from_device_to_device(bench: Bench) -> None:
    first, second = (bench.inventory.bind([gpu_id]) for gpu_id in bench.ids)
    assert (first.environment, first.cpu_cores) != (second.environment, second.cpu_cores)
    assert all(isinstance(value, str) for value in first.environment.values())


def test_an_unknown_device_cannot_be_bound(bench: Bench) -> None:
    with pytest.raises(DeviceError):
        bench.inventory.bind(["nobody"])


def test_no_peak_is_negative(bench: Bench) -> None:
    assert bench.inventory.peak_bytes(0) == 0
    assert "watchdog" in bench.inventory.enforcements
