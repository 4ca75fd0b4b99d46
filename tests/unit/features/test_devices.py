"""Which devices have peaks."""

from __future__ import annotations

import csv
import math
from importlib import resources

import pytest

from predictor_service.features.devices import DEVICE_TYPES, GIBIBYTE, STANDIN_DEVICE, find_device_type
from tests.support.cases import for_each

A100 = "NVIDIA A100-SXM4-40GB"


@for_each(
    ("profile", "multiprocessors", "memory_gib", "bandwidth_share"),
    [
        (f"{A100} MIG 1g.5gb", 14, 4.75, 1 / 8),
        (f"{A100} MIG 1g.5gb+me", 14, 4.75, 1 / 8),
        (f"{A100} MIG 1g.10gb", 14, 9.75, 1 / 4),
        (f"{A100} MIG 2g.10gb", 28, 9.75, 1 / 4),
        (f"{A100} MIG 3g.20gb", 42, 19.62, 1 / 2),
        (f"{A100} MIG 4g.20gb", 56, 19.62, 1 / 2),
        (f"{A100} MIG 7g.40gb", 98, 39.5, 1),
        (f"{A100} MIG 1c.3g.20gb", 14, 19.62, 1 / 2),
        ("NVIDIA A30 MIG 1g.6gb", 14, 5.81, 1 / 4),
        ("NVIDIA A30 MIG 4g.24gb", 56, 23.62, 1),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 16, 9.75, 1 / 8),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 26, 19.62, 1 / 4),
        ("NVIDIA H100 PCIe MIG 3g.40gb", 46, 39.5, 1 / 2),
        ("NVIDIA H200 MIG 7g.141gb", 132, 140, 1),
        ("NVIDIA B200 MIG 7g.180gb", 126, 179, 1),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 2g.48gb-me", 94, 47.38, 1 / 2),
    ],
)
def test_a_slice_has_what_its_driver_lists(
    profile: str, multiprocessors: int, memory_gib: float, bandwidth_share: float
) -> None:
    part = find_device_type(profile)
    assert part is not None
    whole = DEVICE_TYPES[part.name.split(" MIG ")[0]]
    assert (part.multiprocessors, part.is_slice, part.generation) == (multiprocessors, True, whole.generation)
    assert part.memory_bytes == pytest.approx(memory_gib * GIBIBYTE)
    assert part.memory_bytes_per_s == pytest.approx(bandwidth_share * whole.memory_bytes_per_s)
    assert part.l2_bytes == pytest.approx(bandwidth_share * whole.l2_bytes)
    assert {precision: part.peak(precision) / rate for precision, rate in whole.peak_flops.items()} == pytest.approx(
        dict.fromkeys(whole.peak_flops, multiprocessors / whole.multiprocessors)
    )


def test_a_slice_is_found_whatever_the_case_of_its_name() -> None:
    assert find_device_type(f" {A100.lower()} mig 3g.20GB") == find_device_type(f"{A100} MIG 3g.20gb") is not None


@for_each(
    "name",
    ["", "MIG 1g.5gb", "unheard-of MIG 1g.5gb", f"{A100} MIG 8g.40gb", f"{A100} MIG 0g.5gb", f"{A100} MIG 1g.80gb",
     f"{A100} MIG 1g.0gb", f"{A100} MIG 1g.5gb MIG 1g.5gb", f"{A100} MIG", f"{A100} MIG 1c.1g.5gb",
     f"{A100} MIG 5g.20gb", f"{A100} MIG 2g.20gb", f"{A100} MIG 4c.3g.20gb", f"{A100} MIG 1g.5gb+x",
     "NVIDIA A30 MIG 3g.12gb", "NVIDIA A30 MIG 7g.24gb", "Tesla V100-SXM2-16GB MIG 1g.2gb",
     "NVIDIA GeForce RTX 4090 MIG 1g.3gb"],
)  # fmt: skip
def test_what_is_no_slice_of_a_known_device_has_no_peaks(name: str) -> None:
    assert find_device_type(name) is None


def test_every_card_with_slices_is_known_and_its_slices_are_never_larger_than_it() -> None:
    text = resources.files("predictor_service.features").joinpath("slice_table.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len({row["name"] for row in rows}) == len(rows) > 15
    for row in rows:
        counts = [int(count) for count in row["multiprocessors"].split()]
        assert counts == sorted(counts)
        assert counts[-1] <= DEVICE_TYPES[row["name"]].multiprocessors
        assert row["source"]


WITH_64_BIT_MATRIX_UNITS = (
    "NVIDIA A30", "NVIDIA A100", "NVIDIA A800", "NVIDIA H100", "NVIDIA GH200", "NVIDIA H200", "AMD Instinct MI2",
    "AMD Instinct MI300", "AMD Instinct MI325",
)  # fmt: skip
CUT = ("NVIDIA H20", "AMD Radeon")


@for_each("device", [name for name in DEVICE_TYPES if name.startswith(WITH_64_BIT_MATRIX_UNITS)])
def test_a_device_with_64_bit_matrix_units_is_as_fast_in_64_bits_as_in_32(device: str) -> None:
    peaks = DEVICE_TYPES[device]
    assert peaks.peak("fp64") == pytest.approx(peaks.peak("fp32"), rel=0.01)


@for_each(
    "device", [name for name in DEVICE_TYPES if not name.startswith((STANDIN_DEVICE, *WITH_64_BIT_MATRIX_UNITS, *CUT))]
)
def test_no_other_gpu_is_faster_in_64_bits_than_half_of_32_nor_slower_than_a_sixty_fourth(device: str) -> None:
    peaks = DEVICE_TYPES[device]
    assert 0.9 / 64 <= peaks.peak("fp64") / peaks.peak("fp32") <= 0.51


@for_each("device", sorted(DEVICE_TYPES))
def test_no_type_is_slower_in_a_narrower_precision_nor_beyond_what_memory_and_units_could_be(device: str) -> None:
    peaks = DEVICE_TYPES[device]
    rates = [peaks.peak(precision) for precision in ("fp32", "tf32", "fp16")]
    assert rates == sorted(rates)
    assert rates[0] > 0
    assert peaks.peak("bf16") in {peaks.peak("fp16"), peaks.peak("fp32")}
    assert 2 <= peaks.memory_bytes / GIBIBYTE <= 512
    assert 1e9 <= peaks.memory_bytes_per_s <= 1e13
    assert 1 <= peaks.multiprocessors <= 512


@for_each(
    ("device", "multiplies_bf16"),
    [
        ("Tesla P100-PCIE-16GB", False),
        ("Tesla V100-SXM2-16GB", False),
        ("Tesla T4", False),
        ("NVIDIA GeForce RTX 2080 Ti", False),
        ("AMD Instinct MI50", False),
        (A100, True),
        ("NVIDIA GeForce RTX 3060", True),
        ("NVIDIA B200", True),
        ("AMD Instinct MI300X", True),
    ],
)
def test_cards_before_ampere_are_no_faster_in_bf16_than_in_32_bits(device: str, multiplies_bf16: bool) -> None:
    peaks = DEVICE_TYPES[device]
    assert peaks.peak("bf16") == peaks.peak("fp16" if multiplies_bf16 else "fp32")
    assert peaks.peak("fp16") > 1.9 * peaks.peak("fp32")


def test_the_table_has_the_types_that_people_own_and_every_row_states_its_source() -> None:
    assert len(DEVICE_TYPES) >= 125
    text = resources.files("predictor_service.features").joinpath("device_table.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len({row["name"] for row in rows}) == len(rows) == len(DEVICE_TYPES) - 1
    assert all(row["source"] for row in rows)
    assert sum("from memory" in row["source"] for row in rows) <= 24


def test_matrix_units_compute_twice_to_sixteen_times_as_fast_in_half_precision_as_fp32_is() -> None:
    """All of a generation's multiprocessors hold as many matrix units, so that the ratio is a power of two."""
    text = resources.files("predictor_service.features").joinpath("device_table.csv").read_text(encoding="utf-8")
    rows = [row for row in csv.DictReader(text.splitlines()) if row["source"].startswith("techpowerup")]
    sourced = [row for row in rows if row["half_tflops"] and "from memory" not in row["source"]]
    assert len(sourced) > 30
    for row in sourced:
        ratio = float(row["half_tflops"]) / float(row["fp32_tflops"])
        assert ratio == pytest.approx(2 ** round(math.log2(ratio)), rel=0.03), row["name"]
        if row["tf32_tflops"]:
            assert float(row["half_tflops"]) == pytest.approx(2 * float(row["tf32_tflops"]), rel=0.02), row["name"]


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-16GB", "NVIDIA TITAN RTX", "AMD Instinct MI300X", STANDIN_DEVICE])
def test_a_device_without_the_default_computes_convolutions_as_the_job_says(name: str) -> None:
    assert DEVICE_TYPES[name].convolution_precision("fp32") == "fp32"


def test_from_ampere_on_convolutions_run_in_tf32_unless_the_job_says_another_precision() -> None:
    for name in (A100, "NVIDIA GeForce RTX 4090", "NVIDIA H200", "NVIDIA B200"):
        device = DEVICE_TYPES[name]
        assert device.convolution_precision("fp32") == "tf32"
        assert [device.convolution_precision(each) for each in ("fp16", "bf16")] == ["fp16", "bf16"]
        assert device.product_precision("fp32") == "fp32"
        assert device.product_precision("fp32", "tensorflow-2") == "tf32"
