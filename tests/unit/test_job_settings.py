"""One record of settings: its key, its message, and what programs keep of it on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.job_settings import (
    MODES,
    OPTIMIZERS,
    PRECISIONS,
    JobSettings,
    JobSettingsError,
    read_stored_settings,
    stored_settings,
)
from cotenant.job_settings_message import read_settings, settings_message
from cotenant.profile_schema import SoloRow, read_rows
from cotenant.v1 import resources_pb2
from tests.support.cases import for_each

ADAM = JobSettings(global_batch_size=64, optimizer="adam", input_wait_ratio=0.5)
SOLO = Path(__file__).parents[2] / "datasets" / "cpu_standin" / "solo.csv"
RATES = st.none() | st.floats(1.0, 1e12)
SETTINGS = st.builds(
    JobSettings,
    global_batch_size=st.integers(1, 1_000_000),
    mode=st.sampled_from(MODES),
    precision=st.sampled_from(PRECISIONS),
    optimizer=st.sampled_from(OPTIMIZERS),
    input_wait_ms=st.floats(0.0, 3_600_000.0),
    dimension_bindings=st.dictionaries(st.text("abc_", min_size=1), st.integers(1, 1 << 31), max_size=3),
    host_memory_bytes=st.none() | st.integers(1, 1 << 50),
    disk_read_bytes_per_s=RATES,
    network_bytes_per_s=RATES,
    channels_last=st.booleans(),
    activation_checkpointing=st.booleans(),
    ddp_bucket_bytes=st.none() | st.integers(1, 1 << 40),
    sharded_ranks=st.just(0) | st.integers(2, 1_000_000),
    gathered_ratio=st.floats(0, 1),
)


def test_jobs_that_were_measured_long_ago_keep_their_keys() -> None:
    rows = read_rows(SOLO, SoloRow)
    assert rows
    for row in rows:
        settings = JobSettings(
            global_batch_size=row.batch,
            mode=row.mode,
            precision=row.precision,
            optimizer=row.optimizer,
            input_wait_ratio=row.input_wait_ratio,
        )
        assert settings.key(row.graph_sha256 or "") == row.job_key


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (
            JobSettings(global_batch_size=64, optimizer="adam", input_wait_ratio=0.5),
            "81bff9af2fbdb277699f38a64bc19b1265f9722dacd728e9159d8905be5f5fa2",
        ),
        (
            JobSettings(global_batch_size=1, mode="infer", precision="bf16", optimizer="sgd"),
            "a4ba563c4a2ec5f30c69fccb2e84f008691aae935f4967aa07784e01499a8caf",
        ),
        (
            JobSettings(
                global_batch_size=8,
                dimension_bindings={"time": 128},
                host_memory_bytes=8589934592,
                disk_read_bytes_per_s=2.5,
                network_bytes_per_s=1000000000.0,
                input_wait_ratio=1e-05,
            ),
            "fe8415bb2446f5f13742dbb237ad6ab1ca56e7bff0e048c9ee5b1385f7c7ed7b",
        ),
    ],
)
def test_keys_are_those_of_the_first_version(settings: JobSettings, key: str) -> None:
    assert settings.key("g") == key


@pytest.mark.parametrize(
    "same",
    [
        {"dimension_bindings": {}, "host_memory_bytes": None, "mode": "train", "precision": "fp32"},
        {"host_memory_bytes": 0},
        {"input_wait_ratio": 0.5000000238418579},
        {"input_wait_ms": 0.0},
    ],
)
def test_what_counts_as_its_default_keeps_the_key(same: dict[str, Any]) -> None:
    assert replace(ADAM, **same).key("g") == ADAM.key("g")


@for_each(
    "change",
    [
        {"global_batch_size": 65},
        {"optimizer": "sgd"},
        {"precision": "bf16"},
        {"mode": "infer"},
        {"input_wait_ratio": 0.4},
        {"input_wait_ratio": 0.0, "input_wait_ms": 0.5},
        {"dimension_bindings": {"time": 128}},
        {"host_memory_bytes": 1},
    ],
)
def test_any_other_setting_is_another_job(change: dict[str, Any]) -> None:
    assert replace(ADAM, **change).key("g") != ADAM.key("g")


def test_another_graph_is_another_job() -> None:
    assert ADAM.key("g") != ADAM.key("h")


@given(settings=SETTINGS, graph=st.sampled_from(["g", "", '"batch_size":-1']), size=st.integers(1, 1_000_000))
def test_keys_by_batch_size_are_those_of_the_jobs_one_by_one(settings: JobSettings, graph: str, size: int) -> None:
    odd = replace(settings, dimension_bindings={**settings.dimension_bindings, "batch_size": 7, 'a"batch_size":-1': 2})
    for one in (settings, odd):
        assert one.keys(graph)(size) == replace(one, global_batch_size=size).key(graph)


@given(settings=SETTINGS, wait_ratio=st.floats(0.0, 1.0, exclude_max=True))
def test_settings_survive_a_message_and_a_file(settings: JobSettings, wait_ratio: float) -> None:
    assert read_settings(settings_message(settings)) == settings
    assert read_stored_settings(stored_settings(settings)) == settings
    settings = settings.with_wait_share(wait_ratio)
    assert read_settings(settings_message(settings)) == settings
    assert read_stored_settings(stored_settings(settings)) == settings


def test_settings_of_the_first_version_are_read() -> None:
    stored = {
        "batch_size": "64",
        "mode": "RUN_MODE_TRAIN",
        "optimizer": "OPTIMIZER_ADAM",
        "precision": "PRECISION_UNSPECIFIED",
        "input_wait_ratio": 0.5,
        "dimension_bindings": {"time": "32"},
        "written_by_a_later_version": 1,
    }
    assert read_stored_settings(stored) == replace(ADAM, dimension_bindings={"time": 32})


@for_each(
    "wrong",
    [
        {"batch_size": ["sixteen"]},
        {"global_batch_size": 1.5},
        {"global_batch_size": float("inf")},
        {"optimizer": 3},
        {"input_wait_ratio": "half"},
        {"input_wait_ratio": True},
        {"dimension_bindings": [1]},
        {"dimension_bindings": {"time": "long"}},
    ],
)
def test_a_stored_setting_of_another_type_is_refused_by_name(wrong: dict[str, object]) -> None:
    name = "global_batch_size" if "batch_size" in wrong else next(iter(wrong))
    with pytest.raises(JobSettingsError, match=name):
        read_stored_settings(wrong)


@for_each(
    ("wrong", "field"),
    [
        (resources_pb2.JobSettings(), "global_batch_size"),
        (resources_pb2.JobSettings(global_batch_size=1_000_001), "global_batch_size"),
        (resources_pb2.JobSettings(global_batch_size=1, input_wait_ratio=1.0), "input_wait_ratio"),
        (resources_pb2.JobSettings(global_batch_size=1, input_wait_ratio=float("nan")), "input_wait_ratio"),
        (resources_pb2.JobSettings(global_batch_size=1, input_wait_ms=-1.0), "input_wait_ms"),
        (resources_pb2.JobSettings(global_batch_size=1, input_wait_ms=float("nan")), "input_wait_ms"),
        (resources_pb2.JobSettings(global_batch_size=1, input_wait_ms=1e308), "input_wait_ms"),
        (resources_pb2.JobSettings(global_batch_size=1, input_wait_ms=1.0, input_wait_ratio=0.5), "input_wait_ms"),
        (resources_pb2.JobSettings(global_batch_size=1, precision=77), "precision"),  # type: ignore[arg-type]
        (resources_pb2.JobSettings(global_batch_size=1, host_memory_bytes=-1), "host_memory_bytes"),
        (resources_pb2.JobSettings(global_batch_size=1, network_bytes_per_s=float("inf")), "network_bytes_per_s"),
    ],
)
def test_a_message_with_a_setting_outside_its_range_is_refused_by_name(
    wrong: resources_pb2.JobSettings, field: str
) -> None:
    with pytest.raises(JobSettingsError) as refused:
        read_settings(wrong)
    assert refused.value.field == field
    assert refused.value.remedy


def test_settings_that_change_memory_or_time_make_another_job() -> None:
    others = [
        replace(ADAM, channels_last=True),
        replace(ADAM, activation_checkpointing=True),
        replace(ADAM, ddp_bucket_bytes=26214400),
        replace(ADAM, sharded_ranks=4),
        replace(ADAM, sharded_ranks=4, gathered_ratio=0.25),
    ]
    assert len({each.key("0" * 64) for each in (ADAM, *others)}) == 6
    assert replace(ADAM, channels_last=False, ddp_bucket_bytes=None).key("0" * 64) == ADAM.key("0" * 64)


def test_a_wait_in_milliseconds_is_another_share_of_each_step_and_never_all_of_one() -> None:
    settings = JobSettings(global_batch_size=64, input_wait_ms=18.0)
    assert [settings.input_wait_share(step_ms) for step_ms in (36.0, 24.0, 18.0, 1e-9)] == [0.5, 0.75, 0.99, 0.99]
    assert [ADAM.input_wait_share(step_ms) for step_ms in (36.0, 1e-9)] == [0.5, 0.5]


def test_each_sample_of_another_batch_is_waited_for_as_long() -> None:
    settings = JobSettings(global_batch_size=64, input_wait_ms=18.0)
    assert settings.at_batch(16) == JobSettings(global_batch_size=16, input_wait_ms=4.5)
    assert ADAM.at_batch(16) == replace(ADAM, global_batch_size=16)


@pytest.mark.parametrize("size", [0, -1, (1 << 40) + 1, 1 << 62])
def test_a_bucket_that_cannot_be_is_refused(size: int) -> None:
    with pytest.raises(JobSettingsError, match="ddp_bucket_bytes"):
        read_settings(resources_pb2.JobSettings(global_batch_size=8, ddp_bucket_bytes=size))


@pytest.mark.parametrize("ranks", [-1, 1, 1_000_001])
def test_ranks_that_divide_nothing_are_refused(ranks: int) -> None:
    with pytest.raises(JobSettingsError, match="sharded_ranks"):
        read_settings(resources_pb2.JobSettings(global_batch_size=8, sharded_ranks=ranks))


@pytest.mark.parametrize("value", ["yes", 1, 0.5, [True]])
def test_a_stored_switch_that_is_neither_true_nor_false_is_refused(value: Any) -> None:
    with pytest.raises(JobSettingsError, match="channels_last"):
        read_stored_settings({"global_batch_size": 8, "channels_last": value})
