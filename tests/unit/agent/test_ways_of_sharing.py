"""The agent says of each device whether a server of MPS stands between it and its jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cotenant.device_sharing import DeviceSharing, is_mps_server
from cotenant.v1 import resources_pb2
from cotenant_agent.attempts.pausing_means import way_of_sharing
from cotenant_agent.protocol import gpu_to_message
from cotenant_agent.records import GpuDescription


@pytest.mark.parametrize(
    ("driver", "runs", "way"),
    [
        ("570.1", True, DeviceSharing.MPS),
        ("570.1", False, DeviceSharing.TIME_SLICING),
        ("none", True, DeviceSharing.TIME_SLICING),
    ],
)
def test_a_device_with_a_driver_is_shared_under_mps_while_its_control_daemon_runs(
    tmp_path: Path, driver: str, runs: bool, way: DeviceSharing
) -> None:
    if runs:
        (tmp_path / "control").touch()
    gpu = GpuDescription(gpu_id="g", device="NVIDIA H200", memory_bytes=1, index=0, driver=driver)
    assert way_of_sharing(gpu, {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}) is way
    assert DeviceSharing(gpu_to_message(gpu, sharing=way).sharing) is way
    assert gpu_to_message(gpu).sharing == resources_pb2.DEVICE_SHARING_UNSPECIFIED


def test_a_server_of_mps_is_told_by_its_name_as_the_kernel_cuts_it(tmp_path: Path) -> None:
    for pid, name in ((7, "nvidia-cuda-mps"), (8, "python3"), (9, "nvidia-cuda-mp")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
    assert [is_mps_server(pid, tmp_path) for pid in (7, 8, 9, 10)] == [True, False, False, False]
