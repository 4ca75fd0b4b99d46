"""Whatever a job is called, runs, and reads: not a trace of it reaches the profile store, nor what is exported."""

from __future__ import annotations

import sqlite3
import string
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.v1 import node_agent_pb2, prediction_pb2, resources_pb2, scheduling_pb2
from cotenant_agent.devices.measurement_windows import MeasurementWindowRecorder
from cotenant_agent.protocol import launch_from_message, window_to_message
from cotenant_agent.records import LivingAttempt
from predictor_service.grpc_api.measurement_window_answers import record_windows
from predictor_service.profile_store.export import export_folder, export_table
from predictor_service.profile_store.store import ProfileStore
from tests.support.measurement_windows import observed_window

# Long enough that no hash or number holds one by chance: a capital first, which no hash has.
SECRETS = st.lists(
    st.tuples(
        st.sampled_from("QXZ"), st.text(string.ascii_letters + string.digits + "/._- äß", min_size=9, max_size=30)
    ),
    min_size=9,
    max_size=9,
    unique=True,
).map(lambda pairs: [first + rest for first, rest in pairs])


def specification(secrets: list[str]) -> scheduling_pb2.JobSpec:
    name, tenant, program, argument, folder, variable, value, pattern, _ = secrets
    return scheduling_pb2.JobSpec(
        name=name,
        tenant=tenant,
        command=[program, argument],
        working_directory=f"/home/{folder}",
        environment={variable: value},
        progress_regex=pattern,
        graph_sha256="ab" * 32,
        settings=resources_pb2.JobSettings(global_batch_size=16, optimizer=resources_pb2.OPTIMIZER_ADAM),
        steps_total=100,
    )


def measured_by_an_agent(secrets: list[str]) -> list[resources_pb2.MeasurementWindow]:
    """Takes two jobs through the agent's own code, from the order to start them to what a heartbeat carries."""
    tenants = []
    for number, job_id in enumerate((secrets[0], secrets[8])):
        launch = node_agent_pb2.LaunchJob(
            key=node_agent_pb2.AttemptKey(job_id=job_id, attempt=1, fence=number),
            spec=specification(secrets),
            assignments=[scheduling_pb2.Assignment(gpu_id="gpu-of-" + secrets[1])],
            micro_batch_size=16,
        )
        request = launch_from_message(launch)
        tenants.append(LivingAttempt(key=request.key, gpu_ids=request.gpu_ids, job=request.measured_job))
    ids = iter(f"{number:032x}" for number in range(100))
    recorder = MeasurementWindowRecorder(
        campaign="collected_00000000", devices={"gpu-of-" + secrets[1]: "cpu-standin"}, make_id=lambda: next(ids)
    )
    for living in (tenants[:1], tenants, tenants[1:], []):
        recorder.look(living, 0)
        for _ in range(3):
            recorder.add([observed_window(tenant.key) for tenant in living], [], 0)
    return [window_to_message(window) for window in recorder.due()]


def every_text(folder: Path) -> Iterator[bytes]:
    """Everything that lies on the disk, and every cell of the database."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.name.encode() + path.read_bytes()
    with closing(sqlite3.connect(folder / "profiles.sqlite")) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in connection.execute(f"SELECT * FROM {table}"):
                yield repr(row).encode()


@given(secrets=SECRETS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_name_user_path_or_command_is_ever_stored_or_exported(secrets: list[str]) -> None:
    messages = measured_by_an_agent(secrets)
    assert len(messages) == 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(ProfileStore(folder / "profiles.sqlite")) as store:
            answer = record_windows(
                prediction_pb2.RecordMeasurementWindowsRequest(measurement_windows=messages), store, lambda new: None
            )
            assert answer.recorded == 4
            windows = [item.window for item in store.read() if item.window is not None]
        export_folder(windows, folder / "set", folder / "graphs")
        export_table(windows, folder / "pairs.csv", "pairs")
        assert (folder / "pairs.csv").read_text().count("\n") == 3
        kept = list(every_text(folder))
    assert not [secret for secret in secrets for text in kept if secret.encode() in text]


@given(secrets=SECRETS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_agent_that_sends_names_is_refused(secrets: list[str]) -> None:
    honest = measured_by_an_agent(secrets)[0]
    liars: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"window_id": secrets[0]}, {}),
        ({"campaign": f"collected_{secrets[1]}"}, {}),
        ({"device": secrets[2]}, {}),
        ({"quality_flags": [secrets[3]]}, {}),
        ({}, {"graph_sha256": secrets[4]}),
        ({}, {"settings": {"global_batch_size": 16, "dimension_bindings": {f"/{secrets[5]}": 3}}}),
    ]
    messages = []
    for fields, job in liars:
        message = resources_pb2.MeasurementWindow()
        message.CopyFrom(honest)
        for field, value in fields.items():
            message.ClearField(field)  # type: ignore[arg-type]
            json_format.ParseDict({field: value}, message)
        json_format.ParseDict({"job": job}, message)
        messages.append(message)
    with tempfile.TemporaryDirectory() as name:
        with closing(ProfileStore(Path(name) / "profiles.sqlite")) as store:
            answer = record_windows(
                prediction_pb2.RecordMeasurementWindowsRequest(measurement_windows=messages), store, lambda new: None
            )
        kept = list(every_text(Path(name)))
    assert (answer.recorded, len(answer.refused)) == (0, len(liars))
    assert not [secret for secret in secrets for text in kept if secret.encode() in text]
