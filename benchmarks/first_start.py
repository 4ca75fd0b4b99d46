"""What an empty state folder answers about public devices with and without the models that come with the program.

`after` are the predictions that are stored with these models (`held_out.json`): of rows whose family the models had not
seen, by the candidate that is served. `before` is what a service answers about the same rows without a model of the
device type: constants of memory and the law of utilization, both learned from these very rows, and step times by the
model of all device types that has not seen the family. Errors are relative, those of shares plain. Bounds and widths:
`benchmarks.served_memory`. `first_question_cpu_s` is what `predict --device a100` costs in an empty folder.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.features.graphs.described_graph import describe_figures
from predictor_service.features.job_features import FEATURE_INDEX, JobFeatures, build_features
from predictor_service.features.uncalibrated_memory import estimate_uncalibrated
from predictor_service.features.uncalibrated_utilization import busy_ms, estimate_utilization
from predictor_service.fitting.known_rows import name_rows
from predictor_service.fitting.step_bases import unseen_step_ms
from predictor_service.fitting.table_rows import stated_settings
from predictor_service.learning.learning_task import FloatArray, JobFacts, LearningTask
from predictor_service.registry.public_version import PackedVersion, read_public_version
from predictor_service.retraining.datasets import Dataset
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.retraining.public_rows import read_public_datasets
from predictor_service.selection.targets import MEMORY, STEP, TARGETS_BY_NAME, Target
from predictor_service.settings import default_datasets_dir

_GRAPHS: Final = "cpu_standin/graphs"
_WORK: Final = [FEATURE_INDEX[name] for name in ("log_flops", "log_traffic_bytes", "is_training")]


def main() -> dict[str, Any]:
    """Returns the errors of every target and device type that public sets teach, before and after."""
    packed = read_public_version()
    if packed is None:
        return {"skipped": "the models that come with the program were made by other rules"}
    datasets = read_public_datasets(default_datasets_dir())
    targets = {
        f"{device}, {TARGETS_BY_NAME[name].quantity}": _judge(packed, datasets, device, TARGETS_BY_NAME[name])
        for device, records in packed.manifest.targets.items()
        for name, record in records.items()
        if record.is_public
    }
    return {"targets": targets, "first_question_cpu_s": _first_question_s()}


def _judge(packed: PackedVersion, datasets: Sequence[Dataset], name: str, target: Target) -> dict[str, Any]:
    device = find_device_type(name)
    assert device is not None  # it was learned from
    rows = select_rows(datasets, target, device, is_public=True).learned
    known = packed.held_out[name][target.name]
    predicted = dict(zip(known.row_ids, known.predicted, strict=True))
    after = np.array([predicted[row] for row in name_rows(rows)])
    record = packed.manifest.targets[name][target.name]
    return {
        "rows": len(rows),
        "families": record.groups,
        "candidate": record.winner,
        "before": _score(target, rows, _without_model(target, device, rows)),
        "after": _score(target, rows, after),
    }


def _without_model(target: Target, device: DeviceType, rows: LearningTask) -> FloatArray:
    if target is STEP:
        found = unseen_step_ms(rows)
        assert found is not None  # rows that can be learned from have what it asks
        return found
    answer = _memory_bytes if target is MEMORY else _utilization_ratio
    return np.array([answer(job, device) for job in rows.jobs])


def _features(job: JobFacts, device: DeviceType) -> JobFeatures:
    graph = describe_figures(job.graph, job.micro_batch_size)
    assert graph is not None  # rows that can be learned from can be described
    return build_features(graph, stated_settings(job), device)


def _memory_bytes(job: JobFacts, device: DeviceType) -> float:
    built = _features(job, device)
    return estimate_uncalibrated(built.counted_memory, device, convolves=built.convolves).expected_bytes


def _utilization_ratio(job: JobFacts, device: DeviceType) -> float:
    built = _features(job, device)
    flops, traffic_bytes, training = np.expm1(built.values[_WORK]).tolist()
    optimizer_ms, precision = built.optimizer_ratio * built.roofline_ms, stated_settings(job).precision
    busy = busy_ms(flops, traffic_bytes, device, precision, training=training > 0, optimizer_ms=optimizer_ms)
    return estimate_utilization(busy, built.utilization_ceiling_ratio).expected_ratio


def _score(target: Target, rows: LearningTask, values: FloatArray) -> dict[str, float]:
    error = np.abs(values - rows.measured) / (1.0 if target.scale == "share" else rows.measured)
    return {"error_mean": round(float(error.mean()), 4), "error_median": round(float(np.median(error)), 4)}


def _first_question_s() -> float:
    graph = sorted((default_datasets_dir() / _GRAPHS).glob("*.onnx"))[0]
    before = _children_s()
    with tempfile.TemporaryDirectory() as state:
        arguments = ["predict", str(graph), "--device", "a100", "--batch-size", "32", "--state-dir", state]
        command = [sys.executable, "-m", "predictor_service", *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
    return round(_children_s() - before, 2)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
