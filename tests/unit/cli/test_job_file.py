"""Job files and sizes: what is accepted, and what the refusal says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cotenant import quantities
from cotenant.client_errors import InputError
from cotenant.job_file import parse_job, read_job_file
from cotenant.v1 import resources_pb2
from tests.support.cases import for_each

COMPLETE = """
name: bert
tenant: team-a
command: [python, train.py, 5]
working_directory: work
graph: graphs/bert.onnx
environment: {SEED: 1}
settings: {batch_size: 8, precision: bf16, optimizer: adamw, dimension_bindings: {sequence: 128}}
gpus: 2
allowed_gpus: [1, 2, 4]
steps: 1000
share: any
max_slowdown: 0.3
cpu_cores: 2.5
host_memory: 4GiB
memory: 1.5GiB
checkpoint_ms: 2000
progress_regex: "step (?P<step>[0-9]+)"
restart_limit: 2
"""


def test_every_key_arrives_in_the_spec(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(COMPLETE)
    found = read_job_file(path)
    spec = found.spec
    assert found.graph == tmp_path / "graphs/bert.onnx"
    assert spec.working_directory == str(tmp_path / "work")
    assert (list(spec.command), dict(spec.environment)) == (["python", "train.py", "5"], {"SEED": "1"})
    assert (spec.gpus, list(spec.allowed_gpus), spec.steps_total) == (2, [1, 2, 4], 1000)
    assert (spec.share, spec.max_slowdown_ratio) == (resources_pb2.SHARE_MODE_ANY, 0.3)
    assert (spec.host_memory_bytes, spec.memory_bytes) == (4 * 2**30, int(1.5 * 2**30))
    assert spec.settings.precision == resources_pb2.PRECISION_BF16
    assert dict(spec.settings.dimension_bindings) == {"sequence": 128}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ({}, "command is missing"),
        ({"command": "python train.py"}, "command must be a list"),
        ({"command": ["x"], "settings": {"batch": 3}}, "unknown setting 'batch'"),
        ({"command": ["x"], "steps": "many"}, "steps must be a whole number"),
        ({"command": ["x"], "steps": True}, "steps must be a whole number"),
        ({"command": ["x"], "share": "maybe"}, "unknown share_mode 'maybe'"),
        ({"command": ["x"], "memory": "2 elephants"}, "is not a size"),
        ({"command": ["x"], "environment": [1]}, "environment must be a mapping"),
        ({"command": ["x"], "max_slowdown": "20%"}, "max_slowdown must be a number"),
        ({"command": ["x"], "steps": 0}, "steps must be at least 1"),
        ({"command": ["x"], "steps": 10**20}, "steps cannot be a number of 67 bits"),
        ({"command": ["x"], "steps": 10**5000}, "steps cannot be a number of 16610 bits"),
        ({"command": ["x"], "gpus": 4_000_000_000}, "gpus cannot be"),
        ({"command": ["x"], "gpus": 0}, "gpus must be at least 1"),
        ({"command": ["x"], "cpu_cores": 10**400}, "cpu_cores cannot be"),
        ({"command": ["x"], "memory": "9" * 400}, "is more than any machine has"),
        ({"command": ["x"], "memory": "99999999999TiB"}, "is more than any machine has"),
        ({"command": ["x"], "tenant": "\ud800"}, "tenant cannot be '\\ud800'"),
        ({"command": ["x"], "environment": {"A": "\udcff"}}, "environment cannot be"),
        ({"command": ["x"], "settings": {"channels_last": "yes"}}, "channels_last must be true or false"),
        ({"command": ["x"], "settings": {"ddp_bucket_bytes": True}}, "ddp_bucket_bytes"),
        ({"command": ["x"], "settings": {"dimension_bindings": [1, 2]}}, "dimension_bindings must be a mapping"),
        ({"command": ["x"], "settings": {"dimension_bindings": {"n": 10**20}}}, "settings cannot be"),
    ],
)
def test_a_wrong_value_is_named(content: dict[str, object], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(complaint)):
        parse_job(content, folder=tmp_path)


@pytest.mark.parametrize(
    "text", ["- a\n- b\n", "a: [", "\x00", "", "[" * 5_000, "name: 2026-13-45", "steps: " + "9" * 5_000]
)
def test_what_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(InputError):
        read_job_file(path)


@for_each(
    ("text", "size_bytes"),
    [("512MiB", 512 * 2**20), ("1.5 GiB", 3 * 2**29), ("2000000", 2_000_000), ("2GB", 2 * 10**9), ("1g", 2**30)],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert quantities.parse_bytes(text) == size_bytes


@for_each("text", ["8", "80", 16, "0.5"])
def test_a_few_bytes_are_a_size_whose_unit_was_forgotten(text: str | int) -> None:
    with pytest.raises(InputError, match="has no unit, and would be") as caught:
        quantities.parse_bytes(text)
    assert caught.value.remedy == f"write one, such as {text}GiB"
    assert (quantities.parse_bytes("80B"), quantities.parse_bytes("0")) == (80, 0)


def test_durations_are_shown_in_two_units() -> None:
    shown = [quantities.format_duration(ms) for ms in (900, 75_000, 3_700_000, 90_000_000, -5)]
    assert shown == ["0s", "1m15s", "1h01m", "1d01h", "0s"]
