"""What a stranger's device teaches: predictions made first and measurements made after, in one file without names.

The file is written anew after every step, so that an interrupted run goes on where it stopped. It holds the
calibration, what was predicted of each network before it ran here, and rows of the profile schema: nothing that tells
whose machine it was.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from cotenant import profile_schema
from cotenant.device_calibration import DeviceCalibration, stored_calibration, write_calibration
from cotenant.job_settings import JobSettings
from cotenant.profile_schema import PairRow, SoloRow, format_row
from cotenant_profiler import system_clock, zoo
from cotenant_profiler.bench import Bench, Load, Measurement
from cotenant_profiler.campaign import Method
from cotenant_profiler.errors import JournalError, OutOfMemoryError, ProfilerError
from cotenant_profiler.job_spec import JobSpec
from cotenant_profiler.measured_device import MeasuredDevice
from cotenant_profiler.processor_weight import WeightedGroup
from cotenant_profiler.zoo.export import export_graph

SCHEMA: Final = "cotenant.contribution/1"
PRIVACY: Final = (
    "Holds the device type, versions of driver and framework, the day, and what networks of cotenant's zoo were "
    "predicted and measured to take. No host name, user, path, address or serial number. Read it before you send it."
)
NETWORKS: Final = 20
PAIRED_NETWORKS: Final = 4
PAIRS: Final = PAIRED_NETWORKS * (PAIRED_NETWORKS - 1) // 2
TIME_MS_MAX: Final = 600_000
_DAY_MS: Final = 86_400_000
_FILE_BYTES_MAX: Final = 8 << 20
_PREDICTION_S_MAX: Final = 180
_METHOD: Final = Method(window_ms=1_200, warm_up_ms=300, warm_up_ms_max=2_000, reference_ms=400)

Listener = Callable[[str], None]
Predict = Callable[[bytes, JobSettings], Mapping[str, Any] | None]


@dataclass(slots=True)
class Contribution:
    """The file as it stands.

    Attributes:
        path: Where it is.
        content: What it holds; JSON.
    """

    path: Path
    content: dict[str, Any]

    def save(self) -> None:
        """Write it; readers see the old or the new one."""
        partial = self.path.with_name(f".{self.path.name}.partial")
        partial.write_text(json.dumps(self.content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        partial.replace(self.path)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to measure."""
        return not any((*self.unpredicted(), *self.unmeasured(), *self.unpaired()))

    def unpredicted(self) -> Iterator[str]:
        """Names of the networks about which nothing was asked yet."""
        return (name for name in self.content["networks"] if name not in self.content["predicted"])

    def unmeasured(self) -> Iterator[str]:
        """Names of the networks that were not tried yet."""
        return (name for name in self.content["networks"] if name not in self.content["measured"])

    def unpaired(self) -> Iterator[tuple[str, str]]:
        """Pairs that were not tried yet, of the first networks that fit."""
        fits = [
            name for name in self.content["networks"] if self.content["measured"].get(name, {}).get("status") == "ok"
        ]
        for one, other in combinations(fits[:PAIRED_NETWORKS], 2):
            if f"{one}+{other}" not in self.content["paired"]:
                yield one, other


def open_contribution(path: Path, calibration: DeviceCalibration) -> Contribution:
    """Return the file to go on with, or a new one.

    Args:
        path: Where it is or will be.
        calibration: Of the device at hand.

    Raises:
        JournalError: There is something else, or the contribution of another device.
    """
    if path.exists():
        return _resumed(path, calibration)
    # The day is enough: an exact time could be compared with the logs of a machine.
    undated = replace(calibration, measured_at_ms=max(1, calibration.measured_at_ms // _DAY_MS * _DAY_MS))
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "privacy": PRIVACY,
        "campaign": f"contributed_{uuid.uuid4().hex[:8]}",
        "calibration": stored_calibration(undated),
        "networks": choose_networks(calibration),
        "predicted": {},
        "measured": {},
        "paired": {},
    }
    found = Contribution(path, content)
    found.save()
    return found


def choose_networks(calibration: DeviceCalibration) -> list[str]:
    """Return the networks to measure: of all families, small ones on the stand-in."""
    names = zoo.names("small" if calibration.device == "cpu-standin" else "full")
    return [names[index * len(names) // NETWORKS] for index in range(NETWORKS)]


def fill(
    contribution: Contribution,
    device: MeasuredDevice,
    *,
    predict: Predict,
    listener: Listener = lambda part: None,
    time_ms_max: int = TIME_MS_MAX,
) -> None:
    """Predict, then measure, what the file lacks; nothing is begun after the time is over.

    Args:
        contribution: The file.
        device: An open one.
        predict: Answers about a graph with settings before it runs; None = it cannot.
        listener: Told of every part.
        time_ms_max: From now on.
    """
    end_ns = system_clock.now_ns() + time_ms_max * 1_000_000
    content = contribution.content
    for name in list(contribution.unpredicted()):
        if system_clock.now_ns() > end_ns:
            return
        listener(f"predicting {name}")
        content["predicted"][name] = predict(export_graph(name).content, _settings(name))
        contribution.save()
    with Bench(device, WeightedGroup(None, "CPU weight unchanged")) as bench:
        for name in list(contribution.unmeasured()):
            if system_clock.now_ns() > end_ns:
                return
            listener(f"measuring {name}")
            content["measured"][name] = _measure(bench, name, content)
            contribution.save()
        for one, other in list(contribution.unpaired()):
            if system_clock.now_ns() > end_ns:
                return
            listener(f"measuring {one} + {other}")
            content["paired"][f"{one}+{other}"] = _measure_pair(bench, (one, other), content)
            contribution.save()


def predict_offline(calibration: DeviceCalibration) -> Predict:
    """Return a function that asks the predictor, as a process of its own, about the calibrated device."""

    def predict(graph: bytes, settings: JobSettings) -> Mapping[str, Any] | None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "graph.onnx").write_bytes(graph)
            (place / "calibration.json").write_text(write_calibration(calibration), encoding="utf-8")
            command = [sys.executable, "-m", "predictor_service", "predict", str(place / "graph.onnx"), "-o", "json"]
            command += ["--device", calibration.device, "--batch-size", str(settings.global_batch_size)]
            command += ["--optimizer", settings.optimizer, "--calibration", str(place / "calibration.json")]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PREDICTION_S_MAX)
                answer = json.loads(done.stdout)
            except (ValueError, subprocess.TimeoutExpired):
                return None
        names = ("memory_bytes", "step_ms", "utilization_ratio", "model_version")
        return {name: answer.get(name) for name in names}

    return predict


def _settings(name: str) -> JobSettings:
    return JobSettings(global_batch_size=_job(name).batch, optimizer=zoo.find(name).optimizer)


def _job(name: str) -> JobSpec:
    batches = zoo.find(name).batches
    return JobSpec(architecture=name, batch=batches[len(batches) // 2])


def _key(name: str) -> str:
    return _settings(name).key(export_graph(name).sha256)


def _measure(bench: Bench, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the network alone, as text cells; one that did not run says why by its status."""
    job = _job(name)
    try:
        memory = bench.measure_memory(job, _METHOD).figures[0]
        found = bench.measure([Load(job=job)], [Load(job=job)], _METHOD)
    except OutOfMemoryError:
        return format_row(_solo_row(name, content, status="out_of_memory"))
    except ProfilerError:
        return format_row(_solo_row(name, content, status="failed"))
    return format_row(
        _solo_row(name, content, status="ok", figures=found.figures[0], memory=memory, flags=_flags(found))
    )


def _measure_pair(bench: Bench, names: tuple[str, str], content: Mapping[str, Any]) -> list[dict[str, str]]:
    loads = [Load(job=_job(name)) for name in names]
    try:
        found = bench.measure(loads, loads, _METHOD)
    except ProfilerError:
        return []
    keys = [_key(name) for name in names]
    rows = []
    for index, figures in enumerate(found.figures):
        alone_ms = sum(found.references_ms[index]) / 2
        row = PairRow(
            run_id="+".join(names),
            campaign=content["campaign"],
            device=content["calibration"]["device"],
            share_mode="time_slicing",
            victim_job_key=keys[index],
            other_job_keys=(keys[1 - index],),
            victim_step_ms_mean=round(figures["step_ms_mean"], 4),
            victim_solo_step_ms_mean=round(alone_ms, 4),
            slowdown_ratio=round(figures["step_ms_mean"] / alone_ms - 1, 4),
            repeat=0,
            status="ok",
            quality_flags=_flags(found),
        )
        rows.append(format_row(row))
    return rows


def _solo_row(
    name: str,
    content: Mapping[str, Any],
    *,
    status: str,
    figures: Mapping[str, float] = MappingProxyType({}),
    memory: Mapping[str, float] = MappingProxyType({}),
    flags: tuple[str, ...] = (),
) -> SoloRow:
    job, architecture = _job(name), zoo.find(name)
    known: dict[str, Any] = {
        "schema_version": profile_schema.SCHEMA_VERSION,
        "run_id": name,
        "campaign": content["campaign"],
        "mode": "train",
        "device": content["calibration"]["device"],
        "driver": content["calibration"]["driver"],
        "framework": content["calibration"]["framework"],
        "share_mode": "exclusive",
        "job_key": _key(name),
        "graph_sha256": export_graph(name).sha256,
        "architecture": name,
        "family": architecture.family,
        "batch": job.batch,
        "sub_batch": job.batch,
        "precision": "fp32",
        "optimizer": architecture.optimizer,
        "input_wait_ratio": 0.0,
        "gpus": 1,
        "nodes": 1,
        "steps": int(figures.get("steps", 0)),
        "step_ms_mean": round(figures["step_ms_mean"], 4) if figures else None,
        "utilization_ratio": round(figures["utilization_ratio"], 4) if "utilization_ratio" in figures else None,
        "memory_peak_bytes": int(memory["peak_bytes"]) if memory else None,
        "memory_reserved_bytes": int(memory.get("reserved_bytes", 0)) or None if memory else None,
        "memory_context_bytes": int(memory.get("context_bytes", 0)) if memory else None,
        "status": status,
        "quality_flags": flags,
    }
    nullable: dict[str, Any] = dict.fromkeys(SoloRow.__slots__)
    return SoloRow(**(nullable | known))


def _flags(found: Measurement) -> tuple[str, ...]:
    foreign = ("foreign_load",) if found.foreign_ratio > _METHOD.foreign_ratio_max else ()
    return tuple(dict.fromkeys((*found.flags, *foreign)))


def _resumed(path: Path, calibration: DeviceCalibration) -> Contribution:
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise JournalError(f"{path} is larger than any contribution; name another file")
        content = json.loads(path.read_text(encoding="utf-8"))
        kept = content["calibration"]
        is_ours = content["schema"] == SCHEMA and isinstance(content["networks"], list)
        same = (kept["device"], kept["driver"]) == (calibration.device, calibration.driver)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{path} holds no contribution to go on with; name another file") from error
    if not is_ours:
        raise JournalError(f"{path} holds no contribution to go on with; name another file")
    if not same:
        raise JournalError(f"{path} is of another device or driver ({kept['device']}); name another file")
    return Contribution(path, content)


def count_done(contribution: Contribution) -> tuple[int, int]:
    """Return how many networks and pairs were measured."""
    return len(contribution.content["measured"]), len(contribution.content["paired"])
