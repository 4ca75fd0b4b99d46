"""What a calibration is worth on a machine that no model has learned from: jobs alone, with and without it.

`python -m benchmarks.second_machine` prints JSON. The models are those that come with the program; what they know of
the stand-in device was measured on another machine (`datasets/cpu_standin`). The rows of `judged_machines/second` teach
nothing. Its three anchors make the calibration, as `cotenant calibrate` would, and are not judged; every other job that
never waits is asked about as a client asks. (What a job waits is stated for the usual speed of a device; a campaign
fixes it at the speed of its own machine.) The same networks were learned from on the other machine: this judges what a
machine changes, not what a network does. A few CPU seconds.

    mape, ratio            of step times: mean absolute error, and geometric mean of predicted over measured
    coverage, upper/lower  of the 90 % range of step times and of memory; median
    memory_bound           share of jobs below the 99 % bound of their memory
    deviation              of ln(measured / predicted) between all jobs, and between the anchors
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.cross_device import calibration_by
from cotenant.device_calibration import Anchor, DeviceCalibration
from cotenant.job_settings import JobSettings
from cotenant.profile_schema import SoloRow, read_rows
from predictor_service.features.anchor_networks import STANDIN_ANCHORS
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.in_process_describer import InProcessDescriber
from predictor_service.inference.predictor import Predictor
from predictor_service.inference.records import Estimate, JobAnswer, JobQuestion
from predictor_service.registry.public_version import PackedVersion, read_public_version
from predictor_service.registry.version_holder import VersionHolder
from predictor_service.registry.version_store import VersionStore
from predictor_service.settings import default_datasets_dir

MACHINE: Final = Path(__file__).parent / "judged_machines" / "second"
DEVICE: Final = "cpu-standin"
_SPREAD: Final = 0.06
"""Of an anchor's windows, as calibrations of this device report it."""
_ANCHORS: Final = frozenset((each.network, each.batch_size) for each in STANDIN_ANCHORS)
_DIGITS: Final = 3

FloatArray = npt.NDArray[np.float64]
Rows = Mapping[tuple[str, int], Sequence[SoloRow]]
Jobs = Sequence[Sequence[SoloRow]]


def main() -> dict[str, Any]:
    """Asks about every job with and without the machine's calibration."""
    packed = read_public_version()
    if packed is None:
        return {"skipped": "the models that come with the program were made by other rules"}
    rows = read_machine(MACHINE)
    jobs = [same for key, same in sorted(rows.items()) if key not in _ANCHORS]
    anchors = [rows[key] for key in sorted(_ANCHORS)]
    with tempfile.TemporaryDirectory(prefix="cotenant-machine-") as folder:
        predictor = serve_packed(VersionStore(Path(folder)), packed)
        plain, of_anchors = (_ask(predictor, each, None) for each in (jobs, anchors))
        calibrated = _ask(predictor, jobs, calibrate(rows))
    return {
        "jobs": len(jobs),
        "not calibrated": score(jobs, plain),
        "calibrated": score(jobs, calibrated),
        "deviation": {"all": _deviation(jobs, plain), "anchors": _deviation(anchors, of_anchors)},
    }


def read_machine(folder: Path) -> Rows:
    """Returns the accepted rows of jobs that never wait, by architecture and batch size."""
    found: dict[tuple[str, int], list[SoloRow]] = {}
    for row in read_rows(folder / "solo.csv", SoloRow):
        if row.status == "ok" and not row.input_wait_ratio:
            found.setdefault((row.architecture, row.batch), []).append(row)
    return found


def calibrate(rows: Rows) -> DeviceCalibration:
    """Returns what a calibration of this machine would have been by its rows; rates are not used on this device."""
    anchors = [
        Anchor(
            network=each.network,
            graph_sha256=each.graph_sha256,
            batch_size=each.batch_size,
            optimizer=each.optimizer,
            step_ms=_mean([row.step_ms_mean for row in rows[each.network, each.batch_size]]),
            step_spread_ratio=_SPREAD,
            memory_peak_bytes=round(_mean([row.memory_peak_bytes for row in rows[each.network, each.batch_size]])),
            utilization_ratio=_mean([row.utilization_ratio for row in rows[each.network, each.batch_size]]),
        )
        for each in STANDIN_ANCHORS
    ]
    return calibration_by(DEVICE, anchors)


def serve_packed(store: VersionStore, packed: PackedVersion) -> Predictor:
    """Returns a predictor with the models that come with the program, which are put into an empty store."""
    store.add(packed.manifest, packed.files)
    store.activate(store.names()[0])
    versions = VersionHolder(store)
    versions.reload()
    return Predictor(GraphLibrary(InProcessDescriber(), None), versions)


def _ask(predictor: Predictor, jobs: Jobs, calibration: DeviceCalibration | None) -> list[JobAnswer]:
    graphs = default_datasets_dir() / "cpu_standin" / "graphs"
    return [
        predictor.predict_job(
            JobQuestion(
                device=DEVICE,
                onnx_graph=(graphs / f"{same[0].graph_sha256}.onnx").read_bytes(),
                settings=JobSettings(global_batch_size=same[0].batch, optimizer=same[0].optimizer),
                calibration=calibration,
            )
        )
        for same in jobs
    ]


def score(jobs: Jobs, answers: Sequence[JobAnswer]) -> dict[str, float]:
    """Returns the figures of the module's table."""
    steps_ms = np.array([_mean([row.step_ms_mean for row in same]) for same in jobs])
    memory_bytes = np.array([_mean([row.memory_peak_bytes for row in same]) for same in jobs])
    said_ms, said_bytes = [each.step_ms for each in answers], [each.memory_bytes for each in answers]
    ratios = np.array([each.value for each in said_ms]) / steps_ms
    figures = {
        "mape": float(np.abs(ratios - 1).mean()),
        "ratio": math.exp(float(np.log(ratios).mean())),
        "coverage": count_held(said_ms, steps_ms.tolist()),
        "upper_per_lower": float(np.median([each.upper / each.lower for each in said_ms])),
        "memory_coverage": count_held(said_bytes, memory_bytes.tolist()),
        "memory_bound": float((memory_bytes <= [each.upper_99 or math.inf for each in said_bytes]).mean()),
    }
    return {name: round(value, _DIGITS) for name, value in figures.items()}


def count_held(said: Sequence[Estimate], measured: Sequence[float]) -> float:
    """Returns the share of the ranges that hold what was measured."""
    return statistics.fmean(each.lower <= value <= each.upper for each, value in zip(said, measured, strict=True))


def _deviation(jobs: Jobs, answers: Sequence[JobAnswer]) -> float:
    measured_ms = [_mean([row.step_ms_mean for row in same]) for same in jobs]
    logs = [math.log(ms / each.step_ms.value) for ms, each in zip(measured_ms, answers, strict=True)]
    return round(statistics.stdev(logs), _DIGITS)


def _mean(values: Sequence[float | None]) -> float:
    return statistics.fmean(value for value in values if value is not None)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(main(), indent=1))
