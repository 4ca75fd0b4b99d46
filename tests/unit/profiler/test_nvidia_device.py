"""The GPU as a measured device, through the real binding over the fake driver library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cotenant_profiler.campaign_run import open_device
from cotenant_profiler.errors import InvalidCampaignError, ProfilerError
from cotenant_profiler.mps import MpsDaemon
from cotenant_profiler.nvidia_device import NvidiaDevice

from tests.support.fake_driver import FakeDriver, build_library, load_library
from tests.support.mps_server import running_mps_server


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def driver(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    monkeypatch.setenv("FAKE_NVML_STATE", "")
    load_library(library)
    driver = FakeDriver(tmp_path / "driver.txt")
    driver.add_gpu("GPU-a", total_bytes=80 << 30, percent=60)
    return driver


@pytest.fixture
def device(driver: FakeDriver) -> Iterator[NvidiaDevice]:
    with NvidiaDevice("0") as device:
        yield device


def test_workers_see_this_gpu_only_and_by_its_uuid(device: NvidiaDevice) -> None:
    assert device.name == "FakeGPU"
    assert device.place.arguments == ("--cuda",)
    assert device.place.environment == {"CUDA_VISIBLE_DEVICES": "GPU-a"}


def test_a_window_has_the_drivers_samples_and_power_and_nothing_that_it_does_not_report(
    driver: FakeDriver, device: NvidiaDevice
) -> None:
    end = device.watch([10])
    driver.advance()
    window = end()
    assert window.utilization_ratio == pytest.approx(0.6)
    assert window.power_watts == pytest.approx(250.0)
    assert (window.sm_activity_ratio, window.dram_activity_ratio, window.clock_mhz) == (None, None, None)
    assert set(window.figures()) == {"utilization_ratio", "power_watts"}


def test_samples_from_before_the_window_do_not_count(driver: FakeDriver, device: NvidiaDevice) -> None:
    driver.advance()
    assert device.watch([10])().utilization_ratio is None


@pytest.mark.parametrize(
    ("present", "ours", "foreign_ratio"),
    [((), (10,), 0.0), ((10,), (10,), 0.0), ((10, 77), (10,), 1.0), ((501,), (10,), 0.0), ((501, 502), (10,), 1.0)],
    ids=["no process", "only we", "another process", "one whose id is hidden", "two whose ids are hidden"],
)
def test_another_process_on_the_gpu_is_foreign_load(
    driver: FakeDriver, device: NvidiaDevice, present: tuple[int, ...], ours: tuple[int, ...], foreign_ratio: float
) -> None:
    for pid in present:
        driver.add_process("GPU-a", pid, used_bytes=1 << 30, percent=10)
    assert device.watch(ours)().foreign_ratio == foreign_ratio


def test_the_memory_of_a_process_is_what_the_driver_says(driver: FakeDriver, device: NvidiaDevice) -> None:
    assert device.memory_bytes(10) is None
    driver.add_process("GPU-a", 10, used_bytes=3 << 30, percent=10)
    assert device.memory_bytes(10) == 3 << 30


@pytest.mark.parametrize("name", ["tpu:0", "nvidia:", "cpu", ""])
def test_an_unknown_device_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidCampaignError, match="cpu-standin, nvidia:0"):
        open_device(name)


def test_a_gpu_that_is_not_there_is_refused_with_its_name(driver: FakeDriver) -> None:
    with pytest.raises(ProfilerError, match="GPU 7"):
        open_device("nvidia:7")


class _Daemon(MpsDaemon):
    """A service that runs as process 9, without a control program."""

    def __init__(self) -> None:
        pass

    @property
    def environment(self) -> dict[str, str]:
        return {"CUDA_MPS_PIPE_DIRECTORY": "pipe"}

    def server_pids(self) -> frozenset[int]:
        return frozenset({9})


def test_clients_of_a_service_know_it_and_its_server_is_no_foreign_load(
    driver: FakeDriver, device: NvidiaDevice
) -> None:
    driver.add_process("GPU-a", 9, used_bytes=1 << 30, percent=10)
    device.share_by(_Daemon())
    assert device.place.environment == {"CUDA_VISIBLE_DEVICES": "GPU-a", "CUDA_MPS_PIPE_DIRECTORY": "pipe"}
    driver.add_process("GPU-a", 10, used_bytes=1 << 30, percent=10)
    assert device.watch([10])().foreign_ratio == 0.0
    driver.add_process("GPU-a", 77, used_bytes=1 << 30, percent=10)
    assert device.watch([10])().foreign_ratio == 1.0


def test_the_server_of_the_systems_own_service_is_no_foreign_load_and_its_other_clients_are(
    driver: FakeDriver, device: NvidiaDevice, tmp_path: Path
) -> None:
    with running_mps_server(tmp_path) as server:
        driver.add_process("GPU-a", server, used_bytes=30 << 20, percent=10)
        assert device.watch([])().foreign_ratio == 0.0
        assert device.memory_bytes(10) is None
        driver.add_process("GPU-a", 10, used_bytes=1 << 30, percent=10)
        assert device.watch([10])().foreign_ratio == 0.0
        driver.add_process("GPU-a", 77, used_bytes=1 << 30, percent=0)
        assert device.watch([10])().foreign_ratio == 1.0
