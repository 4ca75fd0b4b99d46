"""What an empty state folder answers of public devices with and without the models that come with the program, as JSON.

Every fourth family (or network), by the hash of its name, is held out of the public sets; the models of the others are
learned as `train-public-models` learns them, and asked about the held-out rows as a service asks them. `before` is what
a service answers without them: constants of memory, the law of utilization (both learned from these sets, the judged
rows among them), and step times by the model of all device types that has not seen the family. `on_another_type` asks
the model of memory as for a device type without rows; `before` is then what constants say of such a type.
`cpu_s` is what the first question to an empty state folder costs.

    python -m benchmarks.first_start [--level network|family] [--devices A,B]

Some minutes of work; not blind: see docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from cotenant.profile_schema import SoloRow
from predictor_service.features.described_graph import describe_figures
from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.features.job_features import FEATURE_INDEX, JobFeatures, build_features
from predictor_service.features.uncalibrated_memory import estimate_uncalibrated
from predictor_service.features.uncalibrated_utilization import busy_ms, estimate_utilization
from predictor_service.fitting.answers import forecast_known
from predictor_service.fitting.step_bases import unseen_step_ms
from predictor_service.fitting.table_rows import stated_settings
from predictor_service.inference.memory_of_others import widen_to_contexts
from predictor_service.learning.learning_task import Forecast, JobFacts, LearningTask
from predictor_service.registry.served_version import Bounded, ServedTarget, load_target
from predictor_service.retraining.datasets import Dataset
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.retraining.public_rows import read_public_datasets
from predictor_service.retraining.training import train_version
from predictor_service.selection.targets import MEMORY, SOLO_TARGETS, STEP, Target
from predictor_service.settings import default_datasets_dir

_EVERY: Final = 4
_LEVELS: Final[dict[str, Callable[[SoloRow], str]]] = {
    "network": lambda row: row.architecture,
    "family": lambda row: row.family,
}
_OTHER_TYPE: Final = "NVIDIA H100 80GB HBM3"
_GRAPH: Final = "cpu_standin/graphs"
_WORK: Final = [FEATURE_INDEX[name] for name in ("log_flops", "log_traffic_bytes", "is_training")]


def main(level: str = "family", devices: Sequence[str] = ()) -> dict[str, Any]:
    """Returns errors and coverage of every target and device type that public sets teach, before and after."""
    datasets = [_of_devices(each, devices) for each in read_public_datasets(default_datasets_dir())]
    taught, held_out = ([_part(each, level, is_held_out=part) for each in datasets] for part in (False, True))
    version = train_version([each for each in taught if each.solo], 0, is_public=True)
    figures: dict[str, Any] = {}
    for name, records in version.manifest.targets.items():
        device = find_device_type(name)
        assert device is not None  # it was learned from
        for target in (each for each in SOLO_TARGETS if each.name in records):
            rows = select_rows([each for each in held_out if each.solo], target, device).with_graphs
            if len(rows):
                model = load_target(records[target.name], version.files)
                figures[f"{name}, {target.quantity}"] = _judge(model, target, device, rows)
    return {"level": level, "targets": figures, "first_question_cpu_s": _first_question_s()}


def _of_devices(dataset: Dataset, devices: Sequence[str]) -> Dataset:
    if not devices:
        return dataset
    return dataclasses.replace(dataset, solo=tuple(row for row in dataset.solo if row.device in devices))


def _part(dataset: Dataset, level: str, *, is_held_out: bool) -> Dataset:
    name_of = _LEVELS[level]
    solo = tuple(row for row in dataset.solo if (_hash(name_of(row)) % _EVERY == 0) == is_held_out)
    return dataclasses.replace(dataset, solo=solo)


def _judge(model: ServedTarget, target: Target, device: DeviceType, rows: LearningTask) -> dict[str, Any]:
    known = forecast_known(model, rows)
    found = {"rows": len(rows), "before": _score(target, rows, _fallback(target, device, rows))}
    if target is not MEMORY:
        return {**found, "after": _score(target, rows, _bounded(known))}
    here = widen_to_contexts(_bounded(known), device, of_this_type=True)
    found["after"] = _score(target, rows, here)
    other = find_device_type(_OTHER_TYPE)
    assert other is not None
    familiar = np.flatnonzero(known.in_domain)
    elsewhere = widen_to_contexts(_bounded(known), other, of_this_type=False)
    chosen = rows.subset(familiar.tolist())
    found["on_another_type"] = {
        "rows": len(chosen),
        "before": _score(target, chosen, _fallback(target, other, chosen)),
        "after": _score(target, chosen, _rows_of(elsewhere, familiar)),
    }
    return found


def _bounded(known: Forecast) -> Bounded:
    return Bounded(value=known.value, lower=known.lower_90, upper=known.upper_90, upper_99=known.upper_99)


def _rows_of(bounded: Bounded, places: Any) -> Bounded:  # noqa: ANN401 (an index array)
    return Bounded(**{item.name: getattr(bounded, item.name)[places] for item in dataclasses.fields(Bounded)})


def _fallback(target: Target, device: DeviceType, rows: LearningTask) -> Bounded:
    """What a service says without a model of the device type."""
    if target is STEP:
        value = unseen_step_ms(rows)
        assert value is not None  # rows that can be learned from have what it asks
        return Bounded(value=value, lower=value, upper=value, upper_99=value)
    each = [(_memory if target is MEMORY else _share)(job, device) for job in rows.jobs]
    value, lower, upper, upper_99 = np.array(each).reshape(-1, 4).T
    return Bounded(value=value, lower=lower, upper=upper, upper_99=upper_99)


def _features(job: JobFacts, device: DeviceType) -> JobFeatures:
    graph = describe_figures(job.graph, job.micro_batch_size)
    assert graph is not None  # rows that can be learned from can be described
    return build_features(graph, stated_settings(job), device)


def _memory(job: JobFacts, device: DeviceType) -> tuple[float, ...]:
    built = _features(job, device)
    found = estimate_uncalibrated(built.counted_memory, device, convolves=built.convolves)
    return found.expected_bytes, found.lower_bytes, found.upper_bytes, found.bound_bytes


def _share(job: JobFacts, device: DeviceType) -> tuple[float, ...]:
    built = _features(job, device)
    flops, traffic_bytes, training = np.expm1(built.values[_WORK]).tolist()
    precision = stated_settings(job).precision
    busy = busy_ms(flops, traffic_bytes, device, precision, training=training > 0)
    found = estimate_utilization(busy, built.utilization_ceiling_ratio)
    return found.expected_ratio, found.lower_ratio, found.upper_ratio, found.upper_ratio


def _score(target: Target, rows: LearningTask, said: Bounded) -> dict[str, float]:
    if not len(rows):
        return {}
    measured = rows.measured
    error = np.abs(said.value - measured) / (measured if target.scale == "log_ratio" else 1.0)
    figures = {
        "error_mean": float(np.mean(error)),
        "error_median": float(np.median(error)),
        "covered_90_ratio": float(np.mean((said.lower <= measured) & (measured <= said.upper))),
    }
    if target is STEP:
        figures.pop("covered_90_ratio")
    if target is MEMORY:
        figures["covered_99_ratio"] = float(np.mean(measured <= said.upper_99))
        figures["bound_over_measured_mean"] = float(np.mean(said.upper_99 / measured))
        figures["bound_over_measured_median"] = float(np.median(said.upper_99 / measured))
    return {name: round(value, 4) for name, value in figures.items()}


def _first_question_s() -> float:
    """Processor seconds of the first question of all, with a state folder of its own."""
    graph = sorted((default_datasets_dir() / _GRAPH).glob("*.onnx"))[0]
    before = _children_s()
    with tempfile.TemporaryDirectory() as state:
        arguments = ["predict", str(graph), "--device", "a100", "--batch-size", "32", "--state-dir", state]
        subprocess.run(
            [sys.executable, "-m", "predictor_service", *arguments], check=True, capture_output=True, timeout=600
        )
    return round(_children_s() - before, 2)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _hash(text: str) -> int:
    return int(hashlib.sha256(f"{text}/first start".encode()).hexdigest(), 16)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", choices=sorted(_LEVELS), default="family")
    parser.add_argument("--devices", default="", help="Names of device types, joined by commas; all without.")
    chosen = parser.parse_args()
    print(json.dumps(main(chosen.level, [name for name in chosen.devices.split(",") if name]), indent=1))
