"""What a person, a driver and a snapshot call a device type."""

from __future__ import annotations

import pytest

from predictor_service.errors import InvalidRequestError, UnknownDeviceError
from predictor_service.features.device_names import resolve_device
from predictor_service.features.devices import DEVICE_TYPES, GIBIBYTE, Generation
from tests.support.cases import for_each


@for_each(
    ("name", "full"),
    [
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("RTX-4090", "NVIDIA GeForce RTX 4090"),
        ("nvidia geforce rtx4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("RTX 4090 24GB", "NVIDIA GeForce RTX 4090"),
        ("h200", "NVIDIA H200"),
        ("H200 141GB", "NVIDIA H200"),
        ("h100-sxm5-80gb", "NVIDIA H100 80GB HBM3"),
        ("H100 PCIe", "NVIDIA H100 PCIe"),
        ("a100-sxm4-80g", "NVIDIA A100-SXM4-80GB"),
        ("V100_SXM2_32GB", "Tesla V100-SXM2-32GB"),
        ("2080ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("Titan RTX", "NVIDIA TITAN RTX"),
        ("tesla t4", "Tesla T4"),
        ("l4", "NVIDIA L4"),
        ("a100", "NVIDIA A100-SXM4-40GB"),
        ("NVIDIA A100", "NVIDIA A100-SXM4-40GB"),
        ("A100 80GB", "NVIDIA A100-SXM4-80GB"),
        ("V100", "Tesla V100-SXM2-16GB"),
        ("v100 32gb", "Tesla V100-SXM2-32GB"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("mi300x", "AMD Instinct MI300X"),
        ("Instinct MI250X", "AMD Instinct MI250X"),
        ("a6000", "NVIDIA RTX A6000"),
        ("rtx 6000 ada", "NVIDIA RTX 6000 Ada Generation"),
        ("Quadro RTX 6000", "Quadro RTX 6000"),
        ("CPU_Standin", "cpu-standin"),
        (" NVIDIA H200 ", "NVIDIA H200"),
        ("a100-sxm4-40gb mig 2g.10gb", "NVIDIA A100-SXM4-40GB MIG 2g.10gb"),
        ("B200 1g.23gb", "NVIDIA B200 MIG 1g.23gb"),
        ("NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", "NVIDIA A100-SXM4-40GB MIG 3g.20gb"),
        ("A100 1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("a100-mig-1g.5gb", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("A100 1g.10gb", "NVIDIA A100-SXM4-80GB MIG 1g.10gb"),
        ("A100 40GB 1g.10gb", "NVIDIA A100-SXM4-40GB MIG 1g.10gb"),
        ("H200 7g.141gb", "NVIDIA H200 MIG 7g.141gb"),
        ("k40", "Tesla K40m"),
        ("A100 PCIe 80GB", "NVIDIA A100 80GB PCIe"),
        ("A100-PCIE-80GB", "NVIDIA A100 80GB PCIe"),
        ("H100 80GB PCIe", "NVIDIA H100 PCIe"),
        ("H200 NVL", "NVIDIA H200 NVL"),
        ("B300", "NVIDIA B300 SXM6 AC"),
        ("NVIDIA A800-SXM4-80GB", "NVIDIA A800-SXM4-80GB"),
        ("AMD Instinct MI250X / MI250", "AMD Instinct MI250X"),
        ("AMD Instinct MI300X OAM", "AMD Instinct MI300X"),
        ("L20", "NVIDIA L20"),
        ("MI355X", "AMD Instinct MI355X"),
        ("TITAN X (Pascal)", "NVIDIA TITAN X (Pascal)"),
        ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("nvidia-h100-mega-80gb", "NVIDIA H100 80GB HBM3"),
        ("nvidia-rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
        ("NVIDIA-A100-SXM4-40GB-SHARED", "NVIDIA A100-SXM4-40GB"),
        ("Tesla-T4-SHARED", "Tesla T4"),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"),
        ("gpu_1x_h100_pcie", "NVIDIA H100 PCIe"),
        ("gpu_8x_a100_80gb_sxm4", "NVIDIA A100-SXM4-80GB"),
        ("gres/gpu:a100", "NVIDIA A100-SXM4-40GB"),
    ],
)
def test_a_short_name_means_the_full_one(name: str, full: str) -> None:
    found = resolve_device(name)
    assert (found.device.name, found.is_generic) == (full, False)


@for_each("full", sorted(DEVICE_TYPES))
def test_every_full_name_means_itself(full: str) -> None:
    assert resolve_device(full).device == DEVICE_TYPES[full]


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("a100 pcie", {"NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"}),
        ("V100 PCIe", {"Tesla V100-PCIE-16GB", "Tesla V100-PCIE-32GB"}),
        ("V100-SXM2", {"Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB"}),
        ("RTX 6000", {"Quadro RTX 6000", "NVIDIA RTX 6000 Ada Generation"}),
        ("RTX 5000", {"Quadro RTX 5000", "NVIDIA RTX 5000 Ada Generation"}),
        ("A800", {"NVIDIA A800-SXM4-80GB", "NVIDIA A800 80GB PCIe"}),
        ("nvidia.com/mig-1g.5gb", {"NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-PCIE-40GB MIG 1g.5gb"}),
        ("MIG 1g.6gb", {"NVIDIA A30 MIG 1g.6gb"}),
    ],
)
def test_a_name_of_several_types_is_asked_back_with_all_of_them(name: str, candidates: set[str]) -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        resolve_device(name)
    assert candidates <= set(caught.value.details["candidates"].split(", "))
    assert all(candidate in str(caught.value) for candidate in candidates)


@for_each("name", ["MIG 1g.5gb", "nvidia.com/mig-1g.5gb", "mig-3g.20gb"])
def test_a_slice_of_no_card_is_asked_back_whatever_its_memory(name: str) -> None:
    with pytest.raises(UnknownDeviceError, match="slice of a card that is not named") as caught:
        resolve_device(name, 5 * GIBIBYTE)
    assert "name it with its card" in str(caught.value.remedy)


@for_each(
    "name", ["TPU v4", "tpu-v5-lite-podslice", "Gaudi2", "Intel Gaudi 3", "Trainium", "trn1.32xlarge", "inf2.xlarge"]
)
@pytest.mark.parametrize("memory_bytes", [0, 96 * GIBIBYTE])
def test_what_is_no_gpu_is_never_answered_as_one(name: str, memory_bytes: int) -> None:
    with pytest.raises(UnknownDeviceError, match="nothing was measured"):
        resolve_device(name, memory_bytes)


@for_each(
    "name",
    [
        "NVIDIA Jetson AGX Orin",
        "Jetson Orin Nano",
        "Apple M2 Ultra",
        "mps",
        "Orin",
        "NVIDIA Thor",
        "NVIDIA GB10",
        "AMD Radeon 780M",
    ],
)
def test_a_gpu_on_the_chip_of_its_host_is_taken_for_a_middling_card_only_where_its_memory_is_stated(name: str) -> None:
    with pytest.raises(UnknownDeviceError, match="nothing was measured") as caught:
        resolve_device(name)
    assert "--device-memory" in str(caught.value.remedy)
    assert resolve_device(name, 32 * GIBIBYTE).is_generic


@for_each(("name", "gigabytes"), [("NVIDIA A100-10C", 10), ("NVIDIA L40S-48Q", 48), ("NVIDIA A16-2B", 2)])
def test_a_part_of_a_card_in_a_guest_has_the_memory_that_its_profile_names(name: str, gigabytes: int) -> None:
    found = resolve_device(name)
    assert (found.device.memory_bytes, found.is_generic, found.is_memory_known) == (gigabytes * GIBIBYTE, True, True)
    assert resolve_device(name, 9 * GIBIBYTE).device.memory_bytes == 9 * GIBIBYTE
    assert not resolve_device("NVIDIA X-900").is_memory_known


@for_each("name", ["A30 7g.24gb", "V100 1g.2gb", "RTX 4090 1g.3gb", "A100 5g.20gb", "A30X", "H10", "GRID A100-10C"])
def test_what_a_known_card_only_resembles_is_asked_back_and_not_taken_for_it(name: str) -> None:
    with pytest.raises(UnknownDeviceError, match="did you mean"):
        resolve_device(name)


@pytest.mark.parametrize(
    ("name", "memory_bytes", "full"),
    [
        ("RTX 6000", 48 * GIBIBYTE, "NVIDIA RTX 6000 Ada Generation"),
        ("RTX 6000", 24 * GIBIBYTE, "Quadro RTX 6000"),
        ("V100", 16 * GIBIBYTE, "Tesla V100-SXM2-16GB"),
        ("V100", 32 * 10**9, "Tesla V100-SXM2-32GB"),
        ("V100", 32_510 << 20, "Tesla V100-SXM2-32GB"),
    ],
)
def test_stated_memory_picks_one_of_several_types(name: str, memory_bytes: int, full: str) -> None:
    found = resolve_device(name, memory_bytes)
    assert (found.device.name, found.device.memory_bytes, found.is_generic) == (full, memory_bytes, False)


def test_memory_that_none_of_several_types_has_is_asked_back() -> None:
    with pytest.raises(UnknownDeviceError, match="may be one of"):
        resolve_device("V100", 24 * GIBIBYTE)


def test_memory_that_none_of_several_types_has_is_not_asked_for_again() -> None:
    with pytest.raises(UnknownDeviceError) as caught:
        resolve_device("a100", 20 * 10**9)
    assert "none of them has 18.63 GiB: name one of them in full" in str(caught.value.remedy)
    assert "state its memory" not in str(caught.value.remedy)
    full = resolve_device("NVIDIA A100-SXM4-40GB", 20 * 10**9).device
    assert (full.memory_bytes, full.generation) == (20 * 10**9, Generation.AMPERE)


def test_other_memory_than_the_usual_does_not_make_a_known_type_unknown() -> None:
    found = resolve_device("h200", 70 * GIBIBYTE)
    assert (found.device.name, found.device.memory_bytes, found.is_generic) == ("NVIDIA H200", 70 * GIBIBYTE, False)


@for_each(
    ("name", "nearest"),
    [
        ("rtx 4900", "NVIDIA GeForce RTX 4090"),
        ("rtx 9990", "NVIDIA GeForce RTX 5090"),
        ("RTX 4060 Ti 16GB", "NVIDIA GeForce RTX 4060 Ti"),
        ("h20o", "NVIDIA H200"),
        ("GTX 1081", "NVIDIA GeForce GTX 1080 Ti"),
        ("titan", "NVIDIA TITAN V"),
        ("geforce rtx 4900", "NVIDIA GeForce RTX 4090"),
    ],
)
def test_a_slip_is_asked_back_with_the_names_that_come_near(name: str, nearest: str) -> None:
    with pytest.raises(UnknownDeviceError, match="did you mean") as caught:
        resolve_device(name)
    assert nearest in caught.value.details["candidates"]


@for_each("name", ["abacus", "gpu", "nvidia", "mi999x", "rtx"])
def test_a_bare_word_that_nothing_has_is_no_generic_type(name: str) -> None:
    with pytest.raises(UnknownDeviceError, match=r"state the memory .*--device-memory"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["NVIDIA X990", "AMD Instinct MI999", "Intel Data Center GPU Max 1550", "nvidia x990"])
def test_a_name_with_its_maker_is_a_generic_type_of_unknown_memory(name: str) -> None:
    found = resolve_device(name)
    assert (found.device.name, found.is_generic, found.is_memory_known) == (name, True, False)


@for_each("name", ["NVIDIA X990", "mi999x", "rtx 4900", "fake-gpu", "Tesla V100-PCIE-16GB MIG 9g.1gb"])
def test_an_unknown_name_with_stated_memory_is_a_generic_type_with_middling_peaks(name: str) -> None:
    found = resolve_device(name, 180 * GIBIBYTE)
    assert (found.device.name, found.is_generic, found.is_memory_known) == (name, True, True)
    assert found.device.memory_bytes == 180 * GIBIBYTE
    peaks = sorted(device.peak("fp32") for device in DEVICE_TYPES.values())
    assert peaks[0] < found.device.peak("fp32") < peaks[-1]


@for_each(
    "name",
    [
        "NVIDIA RTX 6000 Ada Generation",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA L40",
        "GRID A100-10C",
        "NVIDIA A10-24Q",
    ],
)
def test_another_card_with_a_similar_name_is_not_taken_for_a_known_one(name: str) -> None:
    assert resolve_device(name, 48 * GIBIBYTE).device.name not in DEVICE_TYPES or name in DEVICE_TYPES


@pytest.mark.parametrize("name", ["", "   ", "x" * 201, "NVIDIA \x1b[31mB200", "a\nb", "NVIDIA X990\0"])
@for_each("memory_bytes", [0, GIBIBYTE])
def test_what_no_device_is_called_is_refused_and_quoted_harmlessly(name: str, memory_bytes: int) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve_device(name, memory_bytes)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@for_each(
    ("name", "generation"),
    [
        ("NVIDIA RTX 4500 Ada Generation", Generation.ADA),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", Generation.ADA),
        ("NVIDIA B300", Generation.BLACKWELL),
        ("NVIDIA A800-SXM4-80GB", Generation.AMPERE),
        ("AMD Instinct MI999", Generation.CDNA),
        ("Tesla V100-SXM2-32GB-LS", Generation.VOLTA),
        ("Quadro GV100", Generation.VOLTA),
        ("Quadro P6000", Generation.PASCAL),
        ("NVIDIA T1000", Generation.TURING),
        ("NVIDIA GeForce GTX 980 Ti", Generation.MAXWELL),
        ("Quadro M6000", Generation.MAXWELL),
        ("Tesla K20", Generation.KEPLER),
        ("NVIDIA L20", Generation.ADA),
        ("AMD MI355X", Generation.CDNA),
        ("NVIDIA TITANIC", Generation.UNKNOWN),
        ("NVIDIA X990", Generation.UNKNOWN),
    ],
)
def test_a_generic_type_has_the_middle_of_the_generation_that_its_name_shows(name: str, generation: Generation) -> None:
    device = resolve_device(name, 24 * GIBIBYTE).device
    assert device.generation is generation
    alike = [known.peak("fp16") for known in DEVICE_TYPES.values() if known.generation is generation]
    assert not alike or min(alike) <= device.peak("fp16") <= max(alike)
