"""What a machine lets the profiler measure, found out by asking and never assumed."""

from __future__ import annotations

import os
import platform
import shutil

import torch

from cotenant_profiler.measured_device import MeasuredDevice
from cotenant_profiler.nvidia_device import NvidiaDevice


def describe_device(device: MeasuredDevice) -> dict[str, object]:
    """Return facts about a device and its machine as plain data.

    `activity_counters` states whether SM, tensor and memory activity will be measured (GPM, from Hopper on);
    `mps_control` is the path of the program that would start MPS, empty where there is none.
    """
    is_gpu = isinstance(device, NvidiaDevice)
    return {
        "device": device.name if isinstance(device, NvidiaDevice) else "cpu-standin",
        "driver": device.driver,
        "torch": torch.__version__,
        "cuda_usable": torch.cuda.is_available() if is_gpu else False,
        "activity_counters": device.has_gpm if isinstance(device, NvidiaDevice) else False,
        "mps_control": shutil.which("nvidia-cuda-mps-control") or "",
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }
