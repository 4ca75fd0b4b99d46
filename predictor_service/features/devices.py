"""Device types that the predictor knows, with the peaks that a roofline needs.

Figures are the vendor's for dense arithmetic (no sparsity) and full memory; matrix units with 32-bit accumulation where
both are published, and those with 64-bit arithmetic where a device has them (A30, A100, H100, H200, B200; neither V100
nor any consumer card does). They anchor predictions: regressors learn what is really reached, so an error of some per
cent in a peak is learned away for trained devices; untrained ones are flagged as fallback anyway. `cpu-standin` is one
processor core standing in for a device; its nominal peaks are round figures of a core with 256-bit vectors.

Compared with published pages: T4, V100, A100 (both), TITAN RTX, RTX 4090, RTX 5090, B200, of H100 the half-precision
rate and the bandwidth, and 64-bit matrix units of A100, H200 (H100 SXM is the same chip) and B200. The others were
written down from memory, those of A30 and H100 PCIe among them.

Source: "NVIDIA A100 Tensor Core GPU" data sheet (nvidia-a100-datasheet-us-nvidia-1758950-r4), as quoted on
https://glennklockwood.com/garden/processors/A100.
Source: https://hothardware.com/news/nvidia-titan-rtx-turing-gpu-24gb-gddr6-11-gigarays-ray-tracing (TITAN RTX).
Source: https://hmc-tech.com/gpus/nvidia-geforce-rtx-4090-vs-nvidia-rtx-pro-5000-blackwell (RTX 4090).
Source: https://www.spheron.network/blog/nvidia-rtx-5090-specs/ (RTX 5090; its half precision is given with sparsity and
16-bit accumulation, a quarter of it is used here).
Source: https://upb-pc2.atlassian.net/wiki/spaces/PC2DOK/pages/1900609 (A100: 64-bit matrix units 19.5, others 9.7).
Source: https://itkb.uw.cz/2026/06/nvidia-h200-vs-b300-precisions-cores.html (H200: 67 and 34).
Source: https://zdszero.github.io/Computer/Artificial_Intelligence/Hardware.html (HGX B200 as NVIDIA's table has it; its
half precision and TF32 are given with sparsity), https://hmc-tech.com/gpus/nvidia-b200-vs-nvidia-gb200 (its
multiprocessors).
Source: https://xinyinicole.com/blogs/nvidia-tensor-cores (consumer cards have no 64-bit matrix units).
Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html (shares of MIG slices).
Source: https://huggingface.co/RajBhope/gpu-runtime-predictor/blob/main/gpu_catalog.json (T4, V100).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

GIBIBYTE: Final = 1 << 30
STANDIN_DEVICE: Final = "cpu-standin"
_GPU_CONTEXT_BYTES: Final = 512 << 20


class Generation(StrEnum):
    """Architecture generations, oldest first: what is known of libraries and contexts carries over within one."""

    KEPLER = "kepler"
    PASCAL = "pascal"
    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    PROCESSOR = "processor"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """Peaks of one device type.

    Attributes:
        name: As NVML reports it, or `cpu-standin`.
        memory_bytes: Device memory.
        peak_flops: Operations per second by precision (fp32 always present).
        memory_bytes_per_s: Bandwidth of device memory.
        multiprocessors: Streaming multiprocessors; 1 for the stand-in.
        context_bytes: What counted memory begins with. It anchors what is learned of a device; where nothing was,
            `uncalibrated_memory` has what contexts really hold.
        launch_ms: Time that one small operator costs at least.
        fuses_lstm: Whether an LSTM layer is one call however many steps it has.
        generation: Of its architecture.
    """

    name: str
    memory_bytes: int
    peak_flops: Mapping[str, float]
    memory_bytes_per_s: float
    multiprocessors: int
    context_bytes: int = _GPU_CONTEXT_BYTES
    launch_ms: float = 0.01
    fuses_lstm: bool = False
    generation: Generation = Generation.UNKNOWN

    def peak(self, precision: str) -> float:
        """Operations per second at a precision; one that the device lacks runs at the fp32 rate."""
        return self.peak_flops.get(precision, self.peak_flops["fp32"])

    def sequence_ms(self, recurrent_steps: float, lstm_steps: float) -> float:
        """Launches of a pass for which the steps of sequences wait: none can begin before the one before it ended.

        Args:
            recurrent_steps: Of all layers, see `GraphFeatures`.
            lstm_steps: Those among them of LSTM layers.
        """
        return sequence_ms(self.launch_ms, self.fuses_lstm, recurrent_steps, lstm_steps)


def sequence_ms(launch_ms: float, fuses_lstm: bool, recurrent_steps: float, lstm_steps: float) -> float:
    """What `DeviceType.sequence_ms` returns for a device with this launch time."""
    return launch_ms * (recurrent_steps - (lstm_steps if fuses_lstm else 0.0))


def _gpu(  # noqa: PLR0917 (a row of a table, read by its columns)
    name: str,
    memory_gib: float,
    fp64: float,
    fp32: float,
    tf32: float,
    half: float,
    gigabytes_per_s: float,
    multiprocessors: int,
    generation: str,
) -> DeviceType:
    """One row of the table; rates in TFLOP/s."""
    rates = {"fp64": fp64, "fp32": fp32, "tf32": tf32, "bf16": half, "fp16": half}
    return DeviceType(
        name=name,
        memory_bytes=int(memory_gib * GIBIBYTE),
        peak_flops={precision: rate * 1e12 for precision, rate in rates.items()},
        memory_bytes_per_s=gigabytes_per_s * 1e9,
        multiprocessors=multiprocessors,
        generation=Generation(generation),
    )


_STANDIN: Final = DeviceType(
    name=STANDIN_DEVICE,
    memory_bytes=2 * GIBIBYTE,
    peak_flops={"fp32": 50e9},
    memory_bytes_per_s=10e9,
    multiprocessors=1,
    # Resident set that the first step adds to the imported libraries, before anything that grows with the model: the
    # intercept of datasets/cpu_standin.
    context_bytes=92 << 20,
    # A step of a GRU costs about that in each of its three passes, however small (49 microseconds together); one of an
    # LSTM a fiftieth of it, because PyTorch hands whole LSTM layers to oneDNN on a processor, and no others.
    launch_ms=0.02,
    fuses_lstm=True,
    generation=Generation.PROCESSOR,
)

_TABLE: Final = (
    _STANDIN,
    _gpu("Tesla K80", 12, 1.46, 4.37, 4.37, 4.37, 240, 13, "kepler"),
    _gpu("Tesla P100-PCIE-16GB", 16, 4.7, 9.3, 9.3, 18.7, 732, 56, "pascal"),
    _gpu("Tesla V100-SXM2-16GB", 16, 7.8, 15.7, 15.7, 125, 900, 80, "volta"),
    _gpu("Tesla V100-SXM2-32GB", 32, 7.8, 15.7, 15.7, 125, 900, 80, "volta"),
    _gpu("Tesla T4", 16, 0.25, 8.1, 8.1, 65, 320, 40, "turing"),
    _gpu("NVIDIA GeForce GTX 1080 Ti", 11, 0.35, 11.3, 11.3, 11.3, 484, 28, "pascal"),
    _gpu("NVIDIA GeForce RTX 2080 Ti", 11, 0.42, 13.4, 13.4, 53.8, 616, 68, "turing"),
    _gpu("NVIDIA GeForce RTX 3090", 24, 0.56, 35.6, 35.6, 71, 936, 82, "ampere"),
    _gpu("NVIDIA GeForce RTX 4090", 24, 1.3, 82.6, 82.6, 165.2, 1008, 128, "ada"),
    _gpu("NVIDIA GeForce RTX 5090", 32, 1.6, 104.8, 104.8, 209.6, 1792, 170, "blackwell"),
    _gpu("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 96, 1.7, 110, 219, 438, 1792, 188, "blackwell"),
    _gpu("NVIDIA TITAN Xp", 12, 0.38, 12.1, 12.1, 12.1, 547, 30, "pascal"),
    _gpu("NVIDIA TITAN V", 12, 7.4, 14.9, 14.9, 110, 653, 80, "volta"),
    _gpu("NVIDIA TITAN RTX", 24, 0.51, 16.3, 16.3, 130, 672, 72, "turing"),
    _gpu("NVIDIA A10", 24, 0.49, 31.2, 62.5, 125, 600, 72, "ampere"),
    _gpu("NVIDIA A30", 24, 10.3, 10.3, 82, 165, 933, 56, "ampere"),
    _gpu("NVIDIA A100-SXM4-40GB", 40, 19.5, 19.5, 156, 312, 1555, 108, "ampere"),
    _gpu("NVIDIA A100-SXM4-80GB", 80, 19.5, 19.5, 156, 312, 2039, 108, "ampere"),
    _gpu("NVIDIA L4", 24, 0.49, 30.3, 60, 121, 300, 58, "ada"),
    _gpu("NVIDIA L40S", 48, 1.4, 91.6, 183, 362, 864, 142, "ada"),
    _gpu("NVIDIA H100 PCIe", 80, 51, 51, 378, 756, 2000, 114, "hopper"),
    _gpu("NVIDIA H100 80GB HBM3", 80, 67, 67, 494, 989, 3350, 132, "hopper"),
    _gpu("NVIDIA H200", 140, 67, 67, 494, 989, 4800, 132, "hopper"),
    _gpu("NVIDIA B200", 179, 37, 75, 1100, 2250, 7700, 148, "blackwell"),
)

DEVICE_TYPES: Final[Mapping[str, DeviceType]] = {device.name: device for device in _TABLE}


def find_device_type(name: str) -> DeviceType | None:
    """Returns the device type of this name, whatever its case; None when the catalogue lacks it.

    A slice of a device (`NVIDIA A100-SXM4-40GB MIG 2g.10gb`) has its share of the peaks of the whole one.
    """
    lowered = name.strip().lower()
    return DEVICE_TYPES.get(name) or _BY_LOWER_NAME.get(lowered) or _find_slice(lowered)


@lru_cache(maxsize=256)
def _find_slice(lowered_name: str) -> DeviceType | None:
    """The slice of a device that a name states; None where it states none, or more than the device has."""
    found = _SLICE.fullmatch(lowered_name)
    whole = _BY_LOWER_NAME.get(found["whole"]) if found else None
    if found is None or whole is None:
        return None
    compute_ratio = int(found["slices"]) / _SLICES_OF_COMPUTE
    memory_ratio = int(found["gigabytes"]) * GIBIBYTE / whole.memory_bytes
    if not (0 < compute_ratio <= 1 and 0 < memory_ratio <= 1):
        return None
    return replace(
        whole,
        name=f"{whole.name} MIG {found['slices']}g.{found['gigabytes']}gb",
        memory_bytes=int(found["gigabytes"]) * GIBIBYTE,
        peak_flops={precision: compute_ratio * rate for precision, rate in whole.peak_flops.items()},
        memory_bytes_per_s=memory_ratio * whole.memory_bytes_per_s,
        multiprocessors=int(compute_ratio * whole.multiprocessors),
    )


_BY_LOWER_NAME: Final = {device.name.lower(): device for device in _TABLE}
_SLICES_OF_COMPUTE: Final = 7
_SLICE: Final = re.compile(r"(?P<whole>.+) mig (?P<slices>\d)g\.(?P<gigabytes>\d{1,3})gb", re.ASCII)
