"""The record of a calibrated device: it survives both of its forms, and what no device can be is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cotenant.device_calibration import (
    FILE_BYTES_MAX,
    Anchor,
    AnchorPair,
    CalibrationError,
    DeviceCalibration,
    PrecisionRates,
    read_calibration,
    read_calibration_file,
    write_calibration,
)
from cotenant.device_calibration_message import calibration_message, read_calibration_message
from cotenant.device_sharing import DeviceSharing
from tests.support.calibrations import NOW_MS, calibration
from tests.support.cases import for_each


def test_the_record_survives_its_json_form() -> None:
    assert read_calibration(write_calibration(calibration()), NOW_MS) == calibration()


def test_the_record_survives_its_message_form() -> None:
    found = read_calibration_message(calibration_message(calibration()), NOW_MS)
    assert (found, dict(found.rates)) == (calibration(), dict(calibration().rates))


def paired(**change: Any) -> DeviceCalibration:
    pair = replace(
        AnchorPair(victim="lenet", other="mlp", slowdown_ratio=1.1, input_wait_ratio=0.5, other_input_wait_ratio=0.6),
        **change,
    )
    return replace(calibration(), pairs=(pair, AnchorPair(victim="mlp", other="lenet", slowdown_ratio=0.0)))


@for_each(
    ("figure", "value", "version_before"),
    [("head_start_ms", 2.04, 4), ("speed_wander_ratio", 0.08, 5)],
)
def test_a_figure_of_later_records_survives_both_forms_and_an_older_one_does_not_know_it(
    figure: str, value: float, version_before: int
) -> None:
    change: dict[str, Any] = {figure: value}
    found = replace(calibration(), **change)
    assert read_calibration(write_calibration(found), NOW_MS) == found
    assert read_calibration_message(calibration_message(found), NOW_MS) == found
    before = json.loads(write_calibration(found)) | {"code_version": version_before}
    del before[figure]
    old = read_calibration(json.dumps(before), NOW_MS)
    assert old == replace(calibration(), code_version=version_before)
    assert old.is_stale(device=old.device, driver=old.driver)
    message: Any = calibration_message(found)
    message.ClearField(figure)
    assert getattr(read_calibration_message(message, NOW_MS), figure) == 0.0


@for_each("head_start_ms", [-0.01, 1_000.1, float("nan"), float("inf")])
def test_a_head_start_that_no_quota_gives_is_refused(head_start_ms: float) -> None:
    with pytest.raises(CalibrationError, match="head_start_ms"):
        replace(calibration(), head_start_ms=head_start_ms).checked(NOW_MS)


def test_how_pairs_shared_the_device_survives_both_forms_and_an_older_record_does_not_say() -> None:
    found = replace(calibration(), sharing=DeviceSharing.MPS)
    assert read_calibration(write_calibration(found), NOW_MS) == found
    assert read_calibration_message(calibration_message(found), NOW_MS) == found
    for unknown in ({}, {"sharing": "by turns of its own"}, {"sharing": 2}):
        older = {name: value for name, value in json.loads(write_calibration(found)).items() if name != "sharing"}
        assert read_calibration(json.dumps(older | unknown), NOW_MS).sharing is DeviceSharing.UNSTATED


@for_each("speed_wander_ratio", [-0.01, 10.1, float("nan"), float("inf")])
def test_a_speed_that_wanders_as_no_device_does_is_refused(speed_wander_ratio: float) -> None:
    with pytest.raises(CalibrationError, match="speed_wander_ratio"):
        replace(calibration(), speed_wander_ratio=speed_wander_ratio).checked(NOW_MS)


def test_what_anchors_lost_together_survives_both_forms() -> None:
    assert read_calibration(write_calibration(paired()), NOW_MS) == paired()
    assert read_calibration_message(calibration_message(paired()), NOW_MS) == paired()


def test_a_record_from_before_pairs_were_measured_is_read_and_measured_again() -> None:
    before = json.loads(write_calibration(calibration())) | {"code_version": 2}
    del before["pairs"]
    found = read_calibration(json.dumps(before), NOW_MS)
    assert found == replace(calibration(), code_version=2)
    assert found.is_stale(device=found.device, driver=found.driver)


@for_each(
    ("said", "change"),
    [
        ("not of two of its anchors", {"other": "vgg"}),
        ("of one anchor", {"other": "lenet"}),
        ("stated twice", {"victim": "mlp", "other": "lenet", "input_wait_ratio": 0.0, "other_input_wait_ratio": 0.0}),
        ("slowdown_ratio is -0.1", {"slowdown_ratio": -0.1}),
        ("slowdown_ratio is nan", {"slowdown_ratio": float("nan")}),
        ("slowdown_ratio is inf", {"slowdown_ratio": float("inf")}),
        ("lenet.input_wait_ratio is 1", {"input_wait_ratio": 1.0}),
        ("mlp.input_wait_ratio is nan", {"other_input_wait_ratio": float("nan")}),
    ],
)
def test_a_pair_that_cannot_be_is_refused(said: str, change: dict[str, Any]) -> None:
    with pytest.raises(CalibrationError, match=said):
        paired(**change).checked(NOW_MS)


def test_more_pairs_than_anchors_have_are_refused() -> None:
    with pytest.raises(CalibrationError, match="34 pairs, at most 16"):
        replace(paired(), pairs=paired().pairs * 17).checked(NOW_MS)


def test_the_record_holds_nothing_that_names_a_machine() -> None:
    assert not {"host", "node", "user", "path", "serial", "uuid"} & set(json.loads(write_calibration(calibration())))


def test_names_of_later_versions_are_passed_over() -> None:
    later = json.loads(write_calibration(calibration())) | {"l3_bytes": 1}
    assert read_calibration(json.dumps(later), NOW_MS) == calibration()


HOSTILE: dict[str, dict[str, Any]] = {
    "launch_ms is nan": {"launch_ms": float("nan")},
    "launch_ms is -1": {"launch_ms": -1.0},
    "copy_bytes_per_s is inf": {"copy_bytes_per_s": float("inf")},
    "host_steps_per_s is 0": {"host_steps_per_s": 0.0},
    "context_bytes is -1": {"context_bytes": -1},
    "workspace_bytes is": {"workspace_bytes": 1 << 60},
    "in the future": {"measured_at_ms": NOW_MS + 48 * 3_600_000},
    "not set": {"measured_at_ms": 0},
    "device is ''": {"device": ""},
    "device is 'xxx": {"device": "x" * 1000},
    "driver is": {"driver": "550\n\x1b[31m"},
    "names 'fp4'": {"rates": {"fp4": PrecisionRates(matmul_flops_per_s=1e9, convolution_flops_per_s=1e9)}},
    "matmul_flops_per_s is 1e+30": {
        "rates": {"fp32": PrecisionRates(matmul_flops_per_s=1e30, convolution_flops_per_s=1e9)}
    },
    "9 anchors": {"anchors": calibration().anchors * 3},
    "code_version is 0": {"code_version": 0},
}


@for_each("said", HOSTILE)
def test_what_no_device_can_be_is_refused_in_both_forms(said: str) -> None:
    hostile = replace(calibration(), **HOSTILE[said])
    with pytest.raises(CalibrationError) as refused:
        hostile.checked(NOW_MS)
    assert said in refused.value.message
    assert refused.value.remedy
    with pytest.raises(CalibrationError):
        read_calibration(write_calibration(hostile), NOW_MS)


@for_each(
    ("said", "change"),
    [
        ("lacks its network", {"network": "../../etc"}),
        ("lacks its network", {"graph_sha256": "abc"}),
        ("step_ms is 0", {"step_ms": 0.0}),
        ("step_ms is nan", {"step_ms": float("nan")}),
        ("batch_size is 0", {"batch_size": 0}),
        ("memory_peak_bytes is -5", {"memory_peak_bytes": -5}),
        ("precision names 'fp8'", {"precision": "fp8"}),
        ("optimizer names 'lion'", {"optimizer": "lion"}),
        ("step_spread_ratio is", {"step_spread_ratio": 1e6}),
        ("utilization_ratio is 1.5", {"utilization_ratio": 1.5}),
    ],
)
def test_an_anchor_that_cannot_be_is_refused(said: str, change: dict[str, Any]) -> None:
    hostile = replace(calibration(), anchors=(replace(calibration().anchors[0], **change),))
    with pytest.raises(CalibrationError, match=said):
        hostile.checked(NOW_MS)


@for_each(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        '{"format": "something/1"}',
        "[" * 100_000,
        '{"format": "cotenant.device_calibration/1"}',
        write_calibration(calibration()).replace('"anchors": [', '"anchors": [7, '),
        write_calibration(calibration()).replace('"launch_ms": 0.02', '"launch_ms": "fast"'),
        write_calibration(calibration()).replace('"launch_ms": 0.02', '"launch_ms": true'),
        write_calibration(calibration()).replace('"launch_ms": 0.02', f'"launch_ms": 1{"0" * 400}'),
        write_calibration(calibration()).replace('"context_bytes": 96000000', '"context_bytes": 1.5'),
    ],
)
def test_what_is_no_calibration_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(CalibrationError) as refused:
        read_calibration(text, NOW_MS)
    assert "cotenant calibrate" in refused.value.remedy


def test_a_file_that_is_absent_too_large_or_binary_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "calibration.json"
    with pytest.raises(CalibrationError, match="cannot read"):
        read_calibration_file(file, NOW_MS)
    file.write_bytes(b" " * (FILE_BYTES_MAX + 1))
    with pytest.raises(CalibrationError, match="larger"):
        read_calibration_file(file, NOW_MS)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(CalibrationError, match="not text"):
        read_calibration_file(file, NOW_MS)
    file.write_text(write_calibration(calibration()))
    assert read_calibration_file(file, NOW_MS) == calibration()


@for_each(
    ("change", "is_stale"),
    [
        ({}, False),
        ({"driver": "600.1"}, True),
        ({"device": "NVIDIA H200"}, True),
        ({"code_version": 99}, True),
        ({"framework": "torch-9"}, True),
    ],
)
def test_a_record_of_another_device_driver_framework_or_method_is_stale(change: dict[str, Any], is_stale: bool) -> None:
    kept = replace(calibration(), **change)
    mine = calibration()
    assert kept.is_stale(device=mine.device, driver=mine.driver, framework=mine.framework) is is_stale


def test_an_unknown_driver_or_framework_makes_nothing_stale() -> None:
    assert not calibration().is_stale(device=calibration().device, driver="")


def test_anchors_and_calibrations_compare_by_what_was_measured() -> None:
    assert isinstance(calibration(), DeviceCalibration)
    assert all(isinstance(each, Anchor) for each in calibration().anchors)
    assert calibration() != replace(calibration(), launch_ms=0.03)
