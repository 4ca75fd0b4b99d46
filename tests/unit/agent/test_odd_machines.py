"""What is offered on machines that are not one sound GPU, and what is said where something is not offered.

The driver is the fake one, as far as its calls tell machines apart; nothing here ran on such a machine.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from cotenant.cli.doctor_command import check_devices
from cotenant.cli.session import Session
from cotenant_agent.commands import probe
from cotenant_agent.devices.nvml_inventory import NvmlInventory
from cotenant_agent.errors import DeviceError, DriverMissingError
from cotenant_agent.records import AttemptKey, JobProcesses
from tests.support.fake_driver import FakeDriver, build_library, load_library

GIB = 1 << 30
KEY = AttemptKey(job_id="job", attempt=1, fence=1)
VERSION_MISMATCH = 18


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """A machine with two equal GPUs."""
    monkeypatch.setenv("FAKE_NVML_STATE", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    load_library(library)
    found = FakeDriver(tmp_path / "driver.txt")
    for uuid in ("GPU-a", "GPU-b"):
        found.add_gpu(uuid, total_bytes=40 * GIB)
    return found


def cut_in_two(driver: FakeDriver) -> None:
    driver.cut("GPU-a")
    driver.add_slice("GPU-a", "MIG-1", total_bytes=5 * GIB)
    driver.add_slice("GPU-a", "MIG-2", total_bytes=5 * GIB)


def cut_anew(driver: FakeDriver) -> None:
    driver.take_out("MIG-1")
    driver.add_slice("GPU-a", "MIG-3", total_bytes=10 * GIB)


def leave_mig(driver: FakeDriver) -> None:
    for uuid in ("MIG-1", "MIG-2"):
        driver.take_out(uuid)


def swap(driver: FakeDriver) -> None:
    driver.take_out("GPU-a")
    driver.add_gpu("GPU-new", total_bytes=96 * GIB, name="NVIDIA_RTX_PRO_7000")


def nothing(driver: FakeDriver) -> None:
    """The machine stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One machine.

    Attributes:
        before: What it is when the agent starts.
        after: What happens while the agent runs.
        offered: GPUs that take jobs then.
        faults: Words of the fault of each that does not.
        anew: GPUs that an agent which is started again offers.
        has_no_driver: Such an agent does not start.
    """

    before: Callable[[FakeDriver], None] = nothing
    after: Callable[[FakeDriver], None] = nothing
    offered: tuple[str, ...]
    faults: Mapping[str, str]
    anew: tuple[str, ...]
    has_no_driver: bool = False


BOTH = ("GPU-a", "GPU-b")
GONE = "start the agent again to offer what is there now"
CASES: Mapping[str, Case] = {
    "two sound GPUs": Case(offered=BOTH, faults={}, anew=BOTH),
    "two different cards": Case(
        before=lambda driver: driver.add_gpu("GPU-c", total_bytes=24 * GIB, name="NVIDIA_L4"),
        offered=(*BOTH, "GPU-c"), faults={}, anew=(*BOTH, "GPU-c"),
    ),
    "a card that no table knows": Case(
        before=lambda driver: driver.add_gpu("GPU-c", total_bytes=48 * GIB, name="NVIDIA_RTX_PRO_7000"),
        offered=(*BOTH, "GPU-c"), faults={}, anew=(*BOTH, "GPU-c"),
    ),
    "a part of a card in a guest (vGPU)": Case(
        before=lambda driver: driver.add_gpu("GPU-c", total_bytes=10 * GIB, name="GRID_A100-10C"),
        offered=(*BOTH, "GPU-c"), faults={}, anew=(*BOTH, "GPU-c"),
    ),
    "a GPU in MIG mode with slices": Case(
        before=cut_in_two, offered=("MIG-1", "MIG-2", "GPU-b"), faults={}, anew=("MIG-1", "MIG-2", "GPU-b")
    ),
    "a GPU in MIG mode without slices": Case(
        before=lambda driver: driver.cut("GPU-a"),
        offered=("GPU-b",), faults={"GPU-a": "make slices"}, anew=("GPU-b",),
    ),
    "a GPU put into MIG mode while the agent runs": Case(
        after=cut_in_two, offered=("GPU-b",), faults={"GPU-a": "MIG mode"}, anew=("MIG-1", "MIG-2", "GPU-b")
    ),
    "slices cut anew while the agent runs": Case(
        before=cut_in_two, after=cut_anew,
        offered=("MIG-2", "GPU-b"), faults={"MIG-1": GONE}, anew=("MIG-2", "MIG-3", "GPU-b"),
    ),
    "MIG mode without slices after the start": Case(
        before=cut_in_two, after=leave_mig,
        offered=("GPU-b",), faults={"MIG-1": GONE, "MIG-2": GONE}, anew=("GPU-b",),
    ),
    "a GPU that fell off the bus": Case(
        after=lambda driver: driver.lose("GPU-a"),
        offered=("GPU-b",), faults={"GPU-a": "GpuIsLost: GPU is lost"}, anew=("GPU-b",),
    ),
    "a GPU swapped for another model": Case(
        after=swap, offered=("GPU-b",), faults={"GPU-a": GONE}, anew=("GPU-b", "GPU-new")
    ),
    "a GPU that is new": Case(
        after=lambda driver: driver.add_gpu("GPU-c", total_bytes=40 * GIB),
        offered=BOTH, faults={}, anew=(*BOTH, "GPU-c"),
    ),
    "a GPU with the memory of its host": Case(
        before=lambda driver: driver.withdraw("nvmlDeviceGetMemoryInfo"),
        offered=(), faults={"unidentified-0": "", "unidentified-1": ""}, anew=(),
    ),
    "an updated driver whose modules stayed loaded": Case(
        after=lambda driver: driver.break_driver(VERSION_MISMATCH),
        offered=(), faults=dict.fromkeys(BOTH, "restart the machine"), anew=(), has_no_driver=True,
    ),
}  # fmt: skip


def sound_ids(gpus: Any) -> tuple[str, ...]:
    return tuple(gpu.gpu_id for gpu in gpus if gpu.healthy)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_offered_is_what_takes_jobs_and_the_rest_says_why(driver: FakeDriver, case: Case) -> None:
    case.before(driver)
    agent = NvmlInventory()
    case.after(driver)
    read = agent.observe({}).gpus
    agent.close()
    assert sound_ids(read) == case.offered
    faults = {gpu.gpu_id: gpu.fault for gpu in read if not gpu.healthy}
    assert faults.keys() == case.faults.keys()
    assert all(faults[gpu_id] and words in faults[gpu_id] for gpu_id, words in case.faults.items())
    if case.has_no_driver:
        # Nobody is told to install what is installed.
        with pytest.raises(DeviceError, match="restart the machine") as caught:
            NvmlInventory()
        assert not isinstance(caught.value, DriverMissingError)
        return
    anew = NvmlInventory()
    assert sorted(sound_ids(anew.describe())) == sorted(case.anew)
    anew.close()


def test_doctor_counts_no_gpu_that_takes_no_job_and_says_why(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.lose("GPU-a")
    found = {finding.state: finding.found for finding in doctor(monkeypatch) if finding.check == "gpus"}
    assert found["ok"] == "1: FakeGPU"
    assert found["warning"] == "GPU 0 (unknown) takes no job: the driver does not describe it (GpuIsLost: GPU is lost)"


def test_doctor_says_that_a_driver_was_updated_under_its_modules(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.break_driver(VERSION_MISMATCH)
    (found,) = [finding for finding in doctor(monkeypatch) if finding.check == "gpus"]
    assert found.state == "warning"
    assert "restart the machine" in found.found


def doctor(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    done = SimpleNamespace(stdout=json.dumps(probe()), stderr="", returncode=0)
    monkeypatch.setattr(sys.modules[check_devices.__module__], "run_captured", lambda *_, **__: done)
    return [*check_devices(Session.__new__(Session))]


@pytest.mark.parametrize("machine", ["WSL2", "confidential computing"])
def test_where_the_driver_names_no_memory_of_processes_a_jobs_is_unknown_and_the_gpus_is_known(
    driver: FakeDriver, machine: str
) -> None:
    if machine == "WSL2":
        driver.withdraw("nvmlDeviceGetComputeRunningProcesses_v3")
    else:
        driver.add_process("GPU-a", 10, used_bytes=-1, percent=40)
    agent = NvmlInventory()
    reading = agent.observe({KEY: JobProcesses(gpu_ids=("GPU-a",), pids=(10,))})
    agent.close()
    assert reading.jobs[KEY].memory_bytes is None
    assert [gpu.memory_used_bytes for gpu in reading.gpus] == [0, 0]


def test_a_machine_without_the_library_of_the_driver_is_told_which_gpus_are_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Jetson boards, AMD and Intel GPUs, laptops with an integrated GPU alone."""
    error = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: (_ for _ in ()).throw(error))
    with pytest.raises(DriverMissingError, match="cannot start NVML"):
        NvmlInventory()
    assert str(probe()["nvml"]).startswith("cannot start NVML")
