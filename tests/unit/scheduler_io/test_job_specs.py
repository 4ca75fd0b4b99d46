"""The settings of a job, wherever a message states them."""

from __future__ import annotations

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.job_specs import kept_settings
from scheduler_service.grpc_api.snapshots.translate_snapshot import request

ADAM = resources_pb2.JobSettings(optimizer=resources_pb2.OPTIMIZER_ADAM)


def row(batch_size: int) -> scheduling_pb2.SnapshotJob:
    return scheduling_pb2.SnapshotJob(graph_sha256="ab" * 32, settings=ADAM, global_batch_size=batch_size)


def test_a_batch_next_to_the_settings_of_a_row_is_one_of_them() -> None:
    settings = kept_settings(row(8))
    assert settings is not None
    assert (settings.global_batch_size, settings.optimizer) == (8, "adam")


def test_rows_that_differ_in_such_a_batch_are_different_jobs() -> None:
    assert request(row(8)).key != request(row(16)).key
