"""A user's JobSpec as the engine keeps it: what only the agent needs as proto3 JSON, the settings as a record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from google.protobuf import json_format

from cotenant.job_settings import JobSettings
from cotenant.job_settings_message import settings_message, unchecked_settings
from cotenant.v1 import scheduling_pb2


def kept_launch(spec: scheduling_pb2.JobSpec) -> Mapping[str, object]:
    """Return a spec without its settings as proto3 JSON with the contract's own field names."""
    found = json_format.MessageToDict(spec, preserving_proto_field_name=True)
    found.pop("settings", None)
    return found


def kept_settings(spec: scheduling_pb2.JobSpec | scheduling_pb2.SnapshotJob) -> JobSettings | None:
    """Return the settings that are stated; None where none are. A snapshot may state the batch next to them."""
    if not spec.HasField("settings"):
        return None
    settings = unchecked_settings(spec.settings)
    if isinstance(spec, scheduling_pb2.SnapshotJob) and not settings.global_batch_size:
        return replace(settings, global_batch_size=spec.global_batch_size)
    return settings


def spec_message(launch: Mapping[str, object], settings: JobSettings | None) -> scheduling_pb2.JobSpec:
    """Return the spec that was handed in."""
    # Versions before 0.2 kept the settings in here as well, by names that the contract has no more.
    known = {name: value for name, value in launch.items() if name != "settings"}
    spec = json_format.ParseDict(known, scheduling_pb2.JobSpec(), ignore_unknown_fields=True)
    if settings is not None:
        spec.settings.CopyFrom(settings_message(settings))
    return spec


def measured_key(spec: scheduling_pb2.JobSpec) -> str:
    """Return the key of a job without a graph: what is measured of a run counts for the next one of the same command.

    Nothing is predicted for it. What decides about memory and time can only be a part of this: the command with its
    arguments, where and with which variables it runs, and its settings.
    """
    parts = scheduling_pb2.JobSpec(
        command=spec.command, working_directory=spec.working_directory, environment=spec.environment
    )
    if spec.HasField("settings"):
        parts.settings.CopyFrom(spec.settings)
    return f"command-{hashlib.sha256(parts.SerializeToString(deterministic=True)).hexdigest()}"


def key_of(graph_sha256: str, settings: JobSettings | None) -> str:
    """Return the key that equal jobs share; empty without a graph."""
    return (settings or JobSettings(global_batch_size=1)).key(graph_sha256) if graph_sha256 else ""
