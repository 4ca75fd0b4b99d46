"""What an agent keeps of a job in order to speak of it: nothing where its owner, or its shape, forbids it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cotenant.job_settings import JobSettings
from cotenant.v1 import node_agent_pb2, resources_pb2, scheduling_pb2
from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.protocol import launch_from_message, window_to_message
from cotenant_agent.ranks.spec_records import stored_job
from cotenant_agent.records import MeasuredJob, MeasurementWindow
from cotenant_agent.settings import SETTINGS as AGENT
from cotenant_agent.storage.state_directory import AttemptDirectory
from tests.support.cases import for_each

SETTINGS = JobSettings(global_batch_size=16, optimizer="adam")
JOB = MeasuredJob(graph_sha256="cd", settings=SETTINGS, micro_batch_size=4)
OF_AN_EARLIER_AGENT = {
    "graph_sha256": "cd",
    "settings": {"batch_size": "16", "optimizer": "OPTIMIZER_ADAM"},
    "sub_batch": 4,
}


def launched(assigned: int = 1, bindings: int = 0, **changes: Any) -> MeasuredJob | None:
    fields: dict[str, Any] = {"graph_sha256": "ab" * 32, "name": "thesis", "command": ["python", "train.py"]}
    spec = scheduling_pb2.JobSpec(
        **{**fields, **changes},
        settings=resources_pb2.JobSettings(
            global_batch_size=16,
            optimizer=resources_pb2.OPTIMIZER_ADAM,
            dimension_bindings={f"axis_{number}": 3 for number in range(bindings)},
        ),
    )
    assignments = [scheduling_pb2.Assignment(gpu_id=f"gpu-{rank}", rank=rank) for rank in range(assigned)]
    launch = node_agent_pb2.LaunchJob(spec=spec, assignments=assignments, micro_batch_size=8)
    return launch_from_message(launch).measured_job


def test_graph_settings_and_micro_batch_are_all_that_is_sent() -> None:
    assert launched() == MeasuredJob(graph_sha256="ab" * 32, settings=SETTINGS, micro_batch_size=8)


@for_each(
    ("assigned", "changes"),
    [(1, {"no_profiles": True}), (1, {"graph_sha256": ""}), (2, {}), (1, {"gpus": 2}), (0, {}), (1, {"bindings": 33})],
)
def test_nothing_is_sent_of_private_unpredicted_or_wide_jobs(assigned: int, changes: dict[str, Any]) -> None:
    assert launched(assigned, **changes) is None


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (stored_job(JOB), JOB),
        (OF_AN_EARLIER_AGENT, JOB),
        ({**OF_AN_EARLIER_AGENT, "settings": {"batch_size": ["sixteen"]}}, None),
        ({**OF_AN_EARLIER_AGENT, "settings": {"batch_size": 0}}, None),
        (None, None),
        ("no record", None),
        ({"graph_sha256": "cd"}, None),
    ],
)
def test_a_next_agent_reads_it_from_the_job_directory(
    tmp_path: Path, record: object, expected: MeasuredJob | None
) -> None:
    spec = json.loads(json.dumps({"job_id": "j", "attempt": 1, "fence": 1, "gpu_ids": ["g"], "measured_job": record}))
    directory = AttemptDirectory(tmp_path / "j.1")
    directory.path.mkdir()
    attempt = Attempt(directory, spec, tmp_path, tmp_path)
    assert attempt.living_attempt.job == expected
    assert (attempt.living_attempt.key.job_id, attempt.living_attempt.gpu_ids) == ("j", ("g",))


def test_settings_that_a_file_holds_wrongly_end_no_conversation() -> None:
    job = MeasuredJob(graph_sha256="cd", settings=JobSettings(global_batch_size=1 << 70))
    window = MeasurementWindow(
        window_id="0" * 32,
        campaign="collected_00000000",
        device="cpu-standin",
        job=job,
        others=(job,),
        steps=10,
        window_ms=1_000,
        utilization_ratio=None,
        sm_activity_ratio=None,
        memory_peak_bytes=None,
        power_watts=None,
        quality_flags=(),
    )
    message = window_to_message(window)
    assert (message.job.graph_sha256, message.job.settings.global_batch_size, len(message.co_located_jobs)) == (
        "cd",
        0,
        1,
    )
    assert not message.HasField("utilization_ratio")


@pytest.mark.parametrize(("flags", "expected"), [({}, True), ({"collect_profiles": False}, False)])
def test_a_node_collects_unless_that_is_switched_off(flags: dict[str, object], expected: bool) -> None:
    settings = AGENT.load({"state_dir": "s", "nvml": True, **flags}, {})
    assert settings.collect_profiles is expected
