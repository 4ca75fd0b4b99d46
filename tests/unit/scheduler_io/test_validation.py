"""Rules of specs: every bound, and all violations at once."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format

from cotenant.v1 import scheduling_pb2
from scheduler_service.errors import FieldViolation, InvalidRequestError
from scheduler_service.grpc_api import validation
from tests.support.cases import for_each
from tests.support.scheduler_process import job_spec


def fields_of(spec: scheduling_pb2.JobSpec) -> set[str]:
    return {violation.field for violation in validation.spec_violations(spec)}


def test_a_good_spec_breaks_no_rule() -> None:
    assert fields_of(job_spec()) == set()
    assert fields_of(job_spec(gpus=1024, allowed_gpus=[1, 1024], settings={"global_batch_size": 1_000_000})) == set()
    assert fields_of(job_spec(gpus=2, ranks=2, collective_timeout_ms=600_000)) == set()
    torchrun = ["torchrun", "--nproc-per-node=1", "train.py", "--nnodes=3"]
    assert fields_of(job_spec(gpus=2, across_nodes=True, command=torchrun)) == set()
    assert fields_of(job_spec(steps_total=10**12, max_slowdown_ratio=10.0, graph_sha256="0a" * 32)) == set()


@for_each(
    ("fields", "expected"),
    [
        ({"name": "a b"}, "spec.name"),
        ({"name": "a" * 64}, "spec.name"),
        ({"tenant": "../x"}, "spec.tenant"),
        ({"command": []}, "spec.command"),
        ({"command": [""]}, "spec.command"),
        ({"command": ["x"] * 1001}, "spec.command"),
        ({"command": ["x" * 200_000]}, "spec.command"),
        ({"command": ["a\0b"]}, "spec.command"),
        ({"working_directory": "relative"}, "spec.working_directory"),
        ({"gpus": -1}, "spec.gpus"),
        ({"gpus": 2, "ranks": 1}, "spec.ranks"),
        ({"ranks": 2}, "spec.ranks"),
        ({"ranks": -1}, "spec.ranks"),
        ({"gpus": 2, "across_nodes": True}, "spec.across_nodes"),
        ({"gpus": 2, "across_nodes": True, "command": ["torchrun", "--nnodes=2", "x.py"]}, "spec.command"),
        ({"gpus": 2, "across_nodes": True, "command": ["torchrun", "--node_rank", "1", "x.py"]}, "spec.command"),
        ({"collective_timeout_ms": -1}, "spec.collective_timeout_ms"),
        ({"gpus": 1025, "settings": {"global_batch_size": 2000}}, "spec.gpus"),
        ({"allowed_gpus": [2]}, "spec.allowed_gpus"),
        ({"allowed_gpus": [0, 1]}, "spec.allowed_gpus"),
        ({"settings": {"global_batch_size": 0}}, "spec.settings.global_batch_size"),
        ({"settings": {"global_batch_size": 10**9}}, "spec.settings.global_batch_size"),
        ({"settings": {"global_batch_size": 8, "input_wait_ratio": 1.0}}, "spec.settings.input_wait_ratio"),
        ({"settings": {"global_batch_size": 8, "input_wait_ratio": "NaN"}}, "spec.settings.input_wait_ratio"),
        ({"settings": {"global_batch_size": 8, "input_wait_ms": "NaN"}}, "spec.settings.input_wait_ms"),
        ({"settings": {"global_batch_size": 8, "input_wait_ms": 4e6}}, "spec.settings.input_wait_ms"),
        (
            {"settings": {"global_batch_size": 8, "input_wait_ms": 4.0, "input_wait_ratio": 0.5}},
            "spec.settings.input_wait_ms",
        ),
        ({"settings": {"global_batch_size": 8, "precision": 77}}, "spec.settings.precision"),
        ({"settings": {"global_batch_size": 8, "dimension_bindings": {"s": 0}}}, "spec.settings.dimension_bindings"),
        ({"steps_total": -1}, "spec.steps_total"),
        ({"steps_total": 10**12 + 1}, "spec.steps_total"),
        ({"batches_per_step": -1}, "spec.batches_per_step"),
        ({"batches_per_step": 1_000_001}, "spec.batches_per_step"),
        ({"max_slowdown_ratio": 10.1}, "spec.max_slowdown_ratio"),
        ({"max_slowdown_ratio": "NaN"}, "spec.max_slowdown_ratio"),
        ({"cpu_cores": "Infinity"}, "spec.cpu_cores"),
        ({"host_memory_bytes": -1}, "spec.host_memory_bytes"),
        ({"restart_limit": 1001}, "spec.restart_limit"),
        ({"share": 9}, "spec.share"),
        ({"graph_sha256": "AB" * 32}, "spec.graph_sha256"),
        ({"environment": {"1X": "v"}}, "spec.environment"),
        ({"environment": {"COTENANT_JOB_ID": "v"}}, "spec.environment"),
        ({"environment": {"X": "v" * 70_000}}, "spec.environment"),
        ({"environment": {f"X{n}": "" for n in range(201)}}, "spec.environment"),
        ({"progress_regex": "step ([0-9]+)"}, "spec.progress_regex"),
        ({"progress_regex": "(?P<step>"}, "spec.progress_regex"),
        ({"progress_regex": "(?P<step>a{99999999999999999999})"}, "spec.progress_regex"),
        ({"progress_regex": "(?P<step>a)".ljust(513)}, "spec.progress_regex"),
    ],
)
def test_a_broken_rule_names_its_field(fields: dict[str, Any], expected: str) -> None:
    assert expected in fields_of(job_spec(**fields))


def test_a_graph_needs_settings() -> None:
    spec = job_spec(graph_sha256="0a" * 32)
    spec.ClearField("settings")
    assert fields_of(spec) == {"spec.settings.global_batch_size"}
    spec.ClearField("graph_sha256")
    assert fields_of(spec) == set()


def test_all_violations_are_raised_together() -> None:
    request = scheduling_pb2.SubmitJobRequest(request_id="no spaces", spec=job_spec(name="?", steps_total=-1))
    with pytest.raises(InvalidRequestError) as caught:
        validation.require(validation.submission_violations(request))
    assert {one.field for one in caught.value.violations} == {"request_id", "spec.name", "spec.steps_total"}
    assert all(isinstance(one, FieldViolation) and one.description for one in caught.value.violations)


def test_the_hash_of_a_body_ignores_the_request_id_only() -> None:
    first = scheduling_pb2.SubmitJobRequest(request_id="a", spec=job_spec(environment={"A": "1", "B": "2"}))
    same = scheduling_pb2.SubmitJobRequest(request_id="b", spec=job_spec(environment={"B": "2", "A": "1"}))
    other = scheduling_pb2.SubmitJobRequest(request_id="a", spec=job_spec(environment={"A": "1", "B": "3"}))
    cancel = json_format.ParseDict({"request_id": "a"}, scheduling_pb2.CancelJobRequest())
    assert validation.body_sha256(first) == validation.body_sha256(same)
    assert len({validation.body_sha256(message) for message in (first, other, cancel)}) == 3
