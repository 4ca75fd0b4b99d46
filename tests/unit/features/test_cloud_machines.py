"""Which card a machine of a cloud has."""

from __future__ import annotations

import pytest

from predictor_service.errors import UnknownDeviceError
from predictor_service.features.cloud_machines import card_of_machine
from predictor_service.features.device_names import resolve_device
from predictor_service.features.devices import DEVICE_TYPES
from tests.support.cases import for_each


@for_each(
    ("machine", "card"),
    [
        ("p2.xlarge", "Tesla K80"),
        ("p3.2xlarge", "Tesla V100-SXM2-16GB"),
        ("p3dn.24xlarge", "Tesla V100-SXM2-32GB"),
        ("p4d.24xlarge", "NVIDIA A100-SXM4-40GB"),
        ("ml.p4de.24xlarge", "NVIDIA A100-SXM4-80GB"),
        ("p5.48xlarge", "NVIDIA H100 80GB HBM3"),
        ("p5en.48xlarge", "NVIDIA H200"),
        ("p6-b200.48xlarge", "NVIDIA B200"),
        ("p6-b300.48xlarge", "NVIDIA B300 SXM6 AC"),
        ("g4dn.metal", "Tesla T4"),
        ("g5.xlarge", "NVIDIA A10G"),
        ("G6.12xlarge", "NVIDIA L4"),
        ("g6e.xlarge", "NVIDIA L40S"),
        ("a2-highgpu-1g", "NVIDIA A100-SXM4-40GB"),
        ("a2-ultragpu-8g", "NVIDIA A100-SXM4-80GB"),
        ("a3-highgpu-8g", "NVIDIA H100 80GB HBM3"),
        ("a3-ultragpu-8g", "NVIDIA H200"),
        ("a4-highgpu-8g", "NVIDIA B200"),
        ("g2-standard-4", "NVIDIA L4"),
        ("Standard_NC6", "Tesla K80"),
        ("Standard_NC6s_v3", "Tesla V100-PCIE-16GB"),
        ("Standard_NC4as_T4_v3", "Tesla T4"),
        ("Standard_NC24ads_A100_v4", "NVIDIA A100 80GB PCIe"),
        ("Standard_NC80adis_H100_v5", "NVIDIA H100 NVL"),
        ("Standard_ND96asr_v4", "NVIDIA A100-SXM4-40GB"),
        ("Standard_ND96amsr_A100_v4", "NVIDIA A100-SXM4-80GB"),
        ("Standard_ND96isr_H100_v5", "NVIDIA H100 80GB HBM3"),
        ("Standard_NV36ads_A10_v5", "NVIDIA A10"),
    ],
)
def test_a_machine_of_a_cloud_means_one_of_its_cards(machine: str, card: str) -> None:
    assert card_of_machine(machine) == card
    assert resolve_device(machine).device == DEVICE_TYPES[card]


@for_each(
    "machine",
    ["Standard_NV6ads_A10_v5", "Standard_NV18ads_A10_v5", "g6f.large", "g5g.xlarge", "m5.xlarge", "Standard_D4s_v5",
     "n1-standard-8", "p9.xlarge", "a2-highgpu", "g5.xlarge.extra", "xg5.xlarge"],
)  # fmt: skip
def test_a_machine_with_a_part_of_a_card_or_none_is_asked_back(machine: str) -> None:
    assert card_of_machine(machine) is None
    with pytest.raises(UnknownDeviceError):
        resolve_device(machine)
