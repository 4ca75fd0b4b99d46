"""The real binding over the fake driver library: what an old, silent or failing driver makes of the readings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant_agent.devices.nvml_inventory import NvmlInventory
from cotenant_agent.errors import DeviceError, DriverMissingError
from cotenant_agent.records import AttemptKey, JobProcesses, JobUsage
from tests.support.fake_driver import FakeDriver, build_library, load_library
from tests.support.mps_server import running_mps_server

KEY = AttemptKey(job_id="job", attempt=1, fence=1)
JOB = JobProcesses(gpu_ids=("GPU-a",), pids=(10, 11))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    monkeypatch.setenv("FAKE_NVML_STATE", "")
    load_library(library)
    driver = FakeDriver(tmp_path / "driver.txt")
    driver.add_gpu("GPU-a", total_bytes=80 << 30, used_bytes=5 << 30, percent=70)
    return driver


@pytest.fixture
def inventory(driver: FakeDriver) -> Iterator[NvmlInventory]:
    found = NvmlInventory()
    yield found
    found.close()


def usage(inventory: NvmlInventory) -> JobUsage:
    return inventory.observe({KEY: JOB}).jobs[KEY]


def test_a_device_is_described_by_its_uuid(inventory: NvmlInventory) -> None:
    (gpu,) = inventory.describe()
    assert (gpu.gpu_id, gpu.device, gpu.memory_bytes) == ("GPU-a", "FakeGPU", 80 << 30)
    assert inventory.bind(["GPU-a"]).environment == {"CUDA_VISIBLE_DEVICES": "GPU-a"}
    assert inventory.bind([]).environment == {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("visible", ["1", "GPU-b", "GPU-bb0000", " GPU-bb0000,1 "])
def test_an_agent_offers_only_the_gpus_that_its_engine_gave_it(driver: FakeDriver, visible: str) -> None:
    driver.add_gpu("GPU-bb0000", total_bytes=80 << 30)
    driver.add_gpu("GPU-c", total_bytes=80 << 30)
    inventory = NvmlInventory(visible=visible)
    assert [(gpu.gpu_id, gpu.index) for gpu in inventory.describe()] == [("GPU-bb0000", 1)]
    with pytest.raises(DeviceError):
        inventory.bind(["GPU-a"])
    inventory.close()


@pytest.mark.parametrize("visible", ["", "7", "GPU-", "NoDevFiles", "MIG-1", "-1"])
def test_a_gpu_that_was_given_and_is_not_here_is_an_error_that_names_it(driver: FakeDriver, visible: str) -> None:
    driver.add_gpu("GPU-b", total_bytes=80 << 30)
    with pytest.raises(DeviceError, match=f"CUDA_VISIBLE_DEVICES .*{visible}"):
        NvmlInventory(visible=visible)


@pytest.fixture
def sliced(driver: FakeDriver) -> FakeDriver:
    driver.add_gpu("GPU-b", total_bytes=80 << 30)
    driver.cut("GPU-a")
    driver.add_slice("GPU-a", "MIG-a1", total_bytes=5 << 30, used_bytes=1 << 30)
    driver.add_slice("GPU-a", "MIG-a2", total_bytes=10 << 30)
    return driver


def test_a_gpu_in_mig_mode_is_offered_as_its_slices_each_with_its_own_memory(sliced: FakeDriver) -> None:
    inventory = NvmlInventory()
    found = [(gpu.gpu_id, gpu.device, gpu.memory_bytes, gpu.healthy) for gpu in inventory.describe()]
    assert found == [
        ("MIG-a1", "FakeGPU_MIG_1g.5gb", 5 << 30, True),
        ("MIG-a2", "FakeGPU_MIG_1g.5gb", 10 << 30, True),
        ("GPU-b", "FakeGPU", 80 << 30, True),
    ]
    assert inventory.bind(["MIG-a2"]).environment == {"CUDA_VISIBLE_DEVICES": "MIG-a2"}
    inventory.close()


def test_a_slice_is_read_as_far_as_drivers_speak_of_slices(sliced: FakeDriver) -> None:
    sliced.add_process("MIG-a1", 10, used_bytes=1 << 29, percent=40)
    inventory = NvmlInventory()
    slice_job = JobProcesses(gpu_ids=("MIG-a1",), pids=(10,))
    found = inventory.observe({KEY: slice_job})
    reading = found.gpus[0]
    assert (reading.gpu_id, reading.healthy, reading.memory_used_bytes) == ("MIG-a1", True, 1 << 30)
    assert (reading.utilization_ratio, reading.power_watts) == (None, None)
    assert (found.jobs[KEY].memory_bytes, found.jobs[KEY].utilization_ratio) == (1 << 29, None)
    assert inventory.users() == {"MIG-a1": frozenset({10}), "MIG-a2": frozenset(), "GPU-b": frozenset()}
    inventory.close()


def test_an_agent_that_was_given_one_slice_offers_that_one(sliced: FakeDriver) -> None:
    inventory = NvmlInventory(visible="MIG-a2")
    assert [gpu.gpu_id for gpu in inventory.describe()] == ["MIG-a2"]
    inventory.close()


def test_a_job_is_given_one_slice_at_most(sliced: FakeDriver) -> None:
    inventory = NvmlInventory()
    for gpu_ids in (["MIG-a1", "MIG-a2"], ["GPU-b", "MIG-a1"]):
        with pytest.raises(DeviceError, match="one slice of a GPU at most"):
            inventory.bind(gpu_ids)
    inventory.close()


def test_a_gpu_that_is_cut_without_slices_or_after_the_start_takes_no_job_and_says_why(driver: FakeDriver) -> None:
    before = NvmlInventory()
    driver.cut("GPU-a")
    after = NvmlInventory()
    assert [gpu.healthy for gpu in after.describe()] == [False]
    for inventory in (before, after):
        (reading,) = inventory.observe({}).gpus
        assert (reading.gpu_id, reading.healthy) == ("GPU-a", False)
        assert "MIG mode" in reading.fault
        assert "start the agent again" in reading.fault
        inventory.close()


def test_a_device_is_read_in_our_units(inventory: NvmlInventory) -> None:
    (reading,) = inventory.observe({}).gpus
    assert reading.memory_used_bytes == 5 << 30
    assert reading.utilization_ratio == pytest.approx(0.7)
    assert reading.power_watts == pytest.approx(250.0)
    assert reading.sm_activity_ratio is None


def test_a_jobs_use_is_the_sum_of_its_processes(driver: FakeDriver, inventory: NvmlInventory) -> None:
    driver.add_process("GPU-a", 10, used_bytes=3 << 30, percent=40)
    driver.add_process("GPU-a", 11, used_bytes=1 << 30, percent=20)
    driver.add_process("GPU-a", 99, used_bytes=7 << 30, percent=30)
    found = usage(inventory)
    assert found.memory_bytes == 4 << 30
    assert found.utilization_ratio == pytest.approx(0.6)


def test_a_wide_jobs_memory_is_that_of_the_gpu_of_which_it_takes_most(driver: FakeDriver) -> None:
    driver.add_gpu("GPU-b", total_bytes=80 << 30)
    driver.add_process("GPU-a", 10, used_bytes=45 << 30, percent=0)
    driver.add_process("GPU-b", 11, used_bytes=50 << 30, percent=0)
    driver.add_process("GPU-b", 10, used_bytes=1 << 30, percent=0)
    inventory = NvmlInventory()
    wide = JobProcesses(gpu_ids=("GPU-a", "GPU-b"), pids=(10, 11))
    # Limits, reservations and predictions are those of one GPU; the sum would be more than either of them has.
    assert inventory.observe({KEY: wide}).jobs[KEY].memory_bytes == 51 << 30
    inventory.close()


def test_what_other_processes_do_on_a_gpu_is_foreign(driver: FakeDriver, inventory: NvmlInventory) -> None:
    driver.add_process("GPU-a", 10, used_bytes=1, percent=40)
    driver.add_process("GPU-a", 99, used_bytes=1, percent=30)
    assert inventory.observe({KEY: JOB}).gpus[0].foreign_ratio == pytest.approx(0.3)
    driver.advance()
    assert inventory.observe({}).gpus[0].foreign_ratio == pytest.approx(0.7)
    driver.withdraw("nvmlDeviceGetProcessUtilization")
    assert inventory.observe({KEY: JOB}).gpus[0].foreign_ratio is None


def test_what_a_server_of_mps_does_is_foreign_only_where_a_process_of_others_is_there(
    driver: FakeDriver, inventory: NvmlInventory, tmp_path: Path
) -> None:
    with running_mps_server(tmp_path) as server:
        driver.add_process("GPU-a", 10, used_bytes=1, percent=0)
        driver.add_process("GPU-a", server, used_bytes=1, percent=60)
        assert inventory.observe({KEY: JOB}).gpus[0].foreign_ratio == 0.0
        assert inventory.users() == {"GPU-a": frozenset({10})}
        driver.add_process("GPU-a", 99, used_bytes=1, percent=0)
        driver.advance()
        assert inventory.observe({KEY: JOB}).gpus[0].foreign_ratio == pytest.approx(0.6)
        assert inventory.users() == {"GPU-a": frozenset({10, 99})}


def test_what_a_server_of_mps_does_is_foreign_where_the_driver_lists_no_processes(
    driver: FakeDriver, inventory: NvmlInventory, tmp_path: Path
) -> None:
    with running_mps_server(tmp_path) as server:
        driver.add_process("GPU-a", server, used_bytes=1, percent=60)
        driver.withdraw("nvmlDeviceGetComputeRunningProcesses_v3")
        assert inventory.observe({KEY: JOB}).gpus[0].foreign_ratio == pytest.approx(0.6)


def test_no_new_sample_means_idle(driver: FakeDriver, inventory: NvmlInventory) -> None:
    driver.add_process("GPU-a", 10, used_bytes=1, percent=40)
    assert usage(inventory).utilization_ratio == pytest.approx(0.4)
    assert usage(inventory).utilization_ratio == 0.0
    driver.advance()
    assert usage(inventory).utilization_ratio == pytest.approx(0.4)


def test_memory_that_the_driver_does_not_report_is_unknown_and_never_zero(
    driver: FakeDriver, inventory: NvmlInventory
) -> None:
    driver.add_process("GPU-a", 10, used_bytes=-1, percent=40)
    driver.add_process("GPU-a", 11, used_bytes=1 << 30, percent=0)
    assert usage(inventory).memory_bytes is None


def test_calls_that_an_old_driver_lacks_leave_their_values_unknown(
    driver: FakeDriver, inventory: NvmlInventory
) -> None:
    for function in (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetUtilizationRates",
    ):
        driver.withdraw(function)
    reading = inventory.observe({KEY: JOB})
    assert reading.jobs[KEY] == JobUsage(memory_bytes=None, utilization_ratio=None)
    assert reading.gpus[0].healthy
    assert (reading.gpus[0].power_watts, reading.gpus[0].utilization_ratio) == (None, None)


def test_without_samples_the_drivers_own_average_is_used(driver: FakeDriver, inventory: NvmlInventory) -> None:
    driver.withdraw("nvmlDeviceGetSamples")
    assert inventory.observe({}).gpus[0].utilization_ratio == pytest.approx(0.7)


def test_a_lost_device_is_unhealthy_until_it_is_back(driver: FakeDriver, inventory: NvmlInventory) -> None:
    driver.lose("GPU-a")
    reading = inventory.observe({KEY: JOB})
    assert not reading.gpus[0].healthy
    assert "GPU is lost" in reading.gpus[0].fault
    assert reading.gpus[0].memory_used_bytes is None
    assert reading.jobs[KEY] == JobUsage(memory_bytes=None, utilization_ratio=None)
    assert not inventory.describe()[0].healthy
    driver.find_again("GPU-a")
    assert inventory.observe({}).gpus[0].healthy
    assert inventory.describe()[0].healthy


def test_a_driver_that_does_not_start_is_named(driver: FakeDriver) -> None:
    driver.break_driver()
    with pytest.raises(DriverMissingError, match="start NVML"):
        NvmlInventory()
