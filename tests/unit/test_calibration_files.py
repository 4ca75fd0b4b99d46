"""Which device of this machine is meant by a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.calibration_files import calibration_path, device_at_hand, keep_calibration, unreadable_calibrations
from tests.support.calibrations import NOW_MS, calibration


def meant(folder: Path, asked: str, *calibrated: str) -> str:
    """The full name of the device that is meant beside some that were calibrated."""
    for device in calibrated:
        kept = replace(calibration(), device=device)
        keep_calibration(calibration_path(folder, device, kept.driver), kept)
    return device_at_hand(folder, asked, NOW_MS)


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        ("h200", "NVIDIA H200"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("nvidia h200", "NVIDIA H200"),
        ("a100", "NVIDIA A100-SXM4-40GB"),
        ("A100-40GB", "NVIDIA A100-SXM4-40GB"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("v100", "Tesla V100-SXM2-16GB"),
    ],
)
def test_a_short_name_means_the_card_at_hand(asked: str, device: str, tmp_path: Path) -> None:
    assert meant(tmp_path, asked, device) == device


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        ("a100-80gb", "NVIDIA A100-SXM4-40GB"),
        ("l4", "NVIDIA L40"),
        ("l40", "NVIDIA L40S"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090 D"),
        ("h100", "NVIDIA H100 NVL"),
        ("nvidia", "NVIDIA H200"),
        ("80gb", "NVIDIA A100-SXM4-80GB"),
        ("", "NVIDIA H200"),
        ("cpu", "cpu-standin"),
    ],
)
def test_a_name_of_another_card_does_not(asked: str, device: str, tmp_path: Path) -> None:
    assert meant(tmp_path, asked, device) == asked


def test_a_short_name_of_two_calibrated_types_means_neither(tmp_path: Path) -> None:
    two = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-80GB")
    assert meant(tmp_path, "a100", *two) == "a100"
    assert meant(tmp_path, "a100-80gb", *two) == two[1]


def test_files_that_cannot_be_read_are_named_and_those_that_can_be_are_not(tmp_path: Path) -> None:
    assert unreadable_calibrations(tmp_path, NOW_MS) == []
    meant(tmp_path, "h200", "NVIDIA H200")
    corrupt = calibration_path(tmp_path / "agent-1", "NVIDIA L4", "1")
    corrupt.parent.mkdir(parents=True)
    corrupt.write_text("{")
    (error,) = unreadable_calibrations(tmp_path, NOW_MS)
    assert error.message == f"{corrupt}: no calibration: no JSON"
