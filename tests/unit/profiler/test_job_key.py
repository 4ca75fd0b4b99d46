from __future__ import annotations

import pytest
from google.protobuf import json_format

from cotenant.job_key import job_key, job_keys
from cotenant.v1 import resources_pb2

SETTINGS = {"batch_size": 64, "optimizer": "adam", "input_wait_ratio": 0.5}


def test_equal_graph_and_settings_have_one_key_in_any_spelling() -> None:
    spelled_out = {
        "input_wait_ratio": 0.5,
        "precision": "fp32",
        "mode": "train",
        "optimizer": "adam",
        "batch_size": 64.0,
        "dimension_bindings": {},
        "host_memory_bytes": None,
    }
    assert job_key("g", SETTINGS) == job_key("g", spelled_out)


def test_a_ratio_that_went_through_single_precision_keeps_the_key() -> None:
    assert job_key("g", {**SETTINGS, "input_wait_ratio": 0.6}) == job_key(
        "g", {**SETTINGS, "input_wait_ratio": 0.6000000238418579}
    )


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 65},
        {"optimizer": "sgd"},
        {"precision": "bf16"},
        {"mode": "infer"},
        {"input_wait_ratio": 0.4},
        {"dimension_bindings": {"time": 128}},
        {"host_memory_bytes": 1},
    ],
)
def test_any_other_setting_is_another_job(change: dict[str, object]) -> None:
    assert job_key("g", {**SETTINGS, **change}) != job_key("g", SETTINGS)


def test_another_graph_is_another_job() -> None:
    assert job_key("g", SETTINGS) != job_key("h", SETTINGS)


def test_the_json_form_of_the_contract_gives_the_same_key() -> None:
    message = resources_pb2.JobSettings(
        batch_size=64, optimizer=resources_pb2.OPTIMIZER_ADAM, input_wait_ratio=0.5, dimension_bindings={"time": 32}
    )
    spelled = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert job_key("g", spelled) == job_key("g", {**SETTINGS, "dimension_bindings": {"time": 32}})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"batch_size": None},
        {"optimizer": "sgd", "precision": "bf16", "mode": "infer"},
        {"dimension_bindings": {"batch_size": -1, 'a"batch_size":-1': 2}},
        {"host_memory_bytes": 1, "disk_read_bytes_per_s": 2.5},
    ],
)
@pytest.mark.parametrize("graph", ["g", "", '"batch_size":-1'])
def test_keys_by_batch_are_those_of_the_jobs_one_by_one(change: dict[str, object], graph: str) -> None:
    settings = {**SETTINGS, **change}
    key_at = job_keys(graph, settings)
    for batch in (1, 64, 1_000_000):
        assert key_at(batch) == job_key(graph, {**settings, "batch_size": batch})
