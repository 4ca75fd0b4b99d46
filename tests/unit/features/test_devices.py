"""Which devices have peaks."""

from __future__ import annotations

import pytest

from predictor_service.features.devices import DEVICE_TYPES, GIBIBYTE, STANDIN_DEVICE, find_device_type

A100 = "NVIDIA A100-SXM4-40GB"


def test_a_slice_of_a_device_has_its_share_of_the_peaks() -> None:
    whole, part = DEVICE_TYPES[A100], find_device_type(f"{A100} MIG 3g.20gb")
    assert part is not None
    assert part.name == f"{A100} MIG 3g.20gb"
    assert part.peak("fp32") == pytest.approx(3 / 7 * whole.peak("fp32"))
    assert part.memory_bytes_per_s == pytest.approx(whole.memory_bytes_per_s / 2)
    assert part.memory_bytes == 20 * GIBIBYTE
    assert find_device_type(f" {A100.lower()} mig 3g.20GB") == part


@pytest.mark.parametrize(
    "name",
    ["", "MIG 1g.5gb", "unheard-of MIG 1g.5gb", f"{A100} MIG 8g.40gb", f"{A100} MIG 0g.5gb", f"{A100} MIG 1g.80gb",
     f"{A100} MIG 1g.0gb", f"{A100} MIG 1g.5gb MIG 1g.5gb", f"{A100} MIG", f"{A100} MIG 1c.1g.5gb"],
)  # fmt: skip
def test_what_is_no_slice_of_a_known_device_has_no_peaks(name: str) -> None:
    assert find_device_type(name) is None


WITH_64_BIT_MATRIX_UNITS = ("NVIDIA A30", "NVIDIA A100", "NVIDIA H100", "NVIDIA H200")


@pytest.mark.parametrize("device", [name for name in DEVICE_TYPES if name.startswith(WITH_64_BIT_MATRIX_UNITS)])
def test_a_device_with_64_bit_matrix_units_is_as_fast_in_64_bits_as_in_32(device: str) -> None:
    peaks = DEVICE_TYPES[device]
    assert peaks.peak("fp64") == pytest.approx(peaks.peak("fp32"), rel=0.01)


@pytest.mark.parametrize(
    "device", [name for name in DEVICE_TYPES if not name.startswith((STANDIN_DEVICE, *WITH_64_BIT_MATRIX_UNITS))]
)
def test_no_other_gpu_is_faster_in_64_bits_than_half_of_32_nor_slower_than_a_sixty_fourth(device: str) -> None:
    peaks = DEVICE_TYPES[device]
    assert 0.9 / 64 <= peaks.peak("fp64") / peaks.peak("fp32") <= 0.51
