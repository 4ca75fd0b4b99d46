"""Measurement windows as agents record them, and a folder of graphs as a service keeps them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotenant.job_settings import JobSettings
from cotenant_agent.records import AttemptKey, AttemptObservation
from predictor_service.profile_store.measurement_window import MeasuredJob, MeasurementWindow
from tests.support.measured_dataset import dense_network

CAMPAIGN = "collected_0123abcd"
NOW_MS = 1_790_000_000_000


def job(number: int = 0, **settings: Any) -> MeasuredJob:
    """A job of its own graph."""
    graph_sha256 = hashlib.sha256(str(number).encode()).hexdigest()
    return MeasuredJob(graph_sha256=graph_sha256, settings=JobSettings(**{"global_batch_size": 16, **settings}))


def window(number: int = 0, /, **changes: Any) -> MeasurementWindow:
    """A window of 4,000 steps of 5 ms alone, with an id of its own."""
    plain = MeasurementWindow(
        window_id=f"{number:032x}",
        campaign=CAMPAIGN,
        device="cpu-standin",
        job=job(),
        micro_batch_size=16,
        steps=4_000,
        window_ms=20_000,
        utilization_ratio=0.7,
        memory_peak_bytes=50_000_000,
    )
    return replace(plain, **changes)


def keep_graph(folder: Path, *widths: int) -> str:
    """Keeps a network under its hash; returns the hash."""
    content = dense_network(list(widths))
    sha256 = hashlib.sha256(content).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{sha256}.onnx").write_bytes(content)
    return sha256


def kept_job(folder: Path, *widths: int, **settings: Any) -> MeasuredJob:
    """A job whose graph is kept in the folder."""
    return MeasuredJob(
        graph_sha256=keep_graph(folder, *widths), settings=JobSettings(**{"global_batch_size": 16, **settings})
    )


def observed_window(key: AttemptKey, **changes: Any) -> AttemptObservation:
    """What an agent saw of an attempt between two heartbeats: 20 steps in 2 s."""
    plain = AttemptObservation(
        key=key,
        steps_done=1,
        epoch=0,
        loss=None,
        window_steps=20,
        window_ms=2_000,
        utilization_ratio=0.5,
        memory_bytes=1,
        memory_peak_bytes=1_000,
        checkpoint_step=-1,
    )
    return replace(plain, **changes)
