"""What a stranger's device teaches: predictions made first and measurements made after, in one file without names.

The file is written anew after every step, so that an interrupted run goes on where it stopped. It holds the
calibration, what was predicted of each network before it ran here, and rows of the profile schema: nothing that tells
whose machine it was.
"""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from cotenant.device_calibration import DeviceCalibration, stored_calibration
from cotenant.device_calibration_message import calibration_message
from cotenant.errors import CotenantError
from cotenant.job_settings import JobSettings
from cotenant.job_settings_message import settings_message
from cotenant.prediction_questions import Questions, ask_offline, hash_of
from cotenant.v1 import prediction_pb2
from cotenant_profiler import system_clock, zoo
from cotenant_profiler.bench import Bench
from cotenant_profiler.contribution_rows import FOREIGN_LOAD, measure_network, measure_pair, settings_of
from cotenant_profiler.contribution_time import TimePlan
from cotenant_profiler.errors import JournalError
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
_ANSWER_MS_MIN: Final = 30_000.0
_ANSWERED: Final = ("memory_bytes", "step_ms", "utilization_ratio", "model_version")

Listener = Callable[[str], None]
QuestionsByName = Mapping[str, tuple[bytes, JobSettings]]
"""Graphs with settings by name of the network."""
Predict = Callable[[QuestionsByName, float], Mapping[str, Any]]
"""Answers by name, None = it cannot; the number is the time that it has, milliseconds."""


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
        "graphs": {},
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
    plan: TimePlan | None = None,
) -> None:
    """Predict, then measure, what the file lacks, as far as the time goes; what is left out another run does.

    Args:
        contribution: The file.
        device: An open one.
        predict: Answers about graphs with settings before they run.
        listener: Told of every part.
        plan: Of the time; None = ten minutes from now on.
    """
    plan = plan or TimePlan.start(system_clock.now_ns, TIME_MS_MAX)
    _predict_all(contribution, predict, listener, plan)
    content = contribution.content
    with Bench(device, WeightedGroup(None, "CPU weight unchanged")) as bench:
        known = content["predicted"].keys() & content["graphs"].keys()
        networks = [name for name in contribution.unmeasured() if name in known]
        for place, name in enumerate(networks):
            time_ms = plan.network_ms(len(networks) - place)
            if time_ms is None:
                break
            listener(f"measuring {name}")
            bench.limit(time_ms)
            content["measured"][name] = measure_network(bench, name, content)
            contribution.save()
        pairs = [pair for pair in contribution.unpaired() if known.issuperset(pair)]
        for place, (one, other) in enumerate(pairs):
            time_ms = plan.pair_ms(len(pairs) - place)
            if time_ms is None:
                break
            listener(f"measuring {one} + {other}")
            bench.limit(time_ms)
            content["paired"][f"{one}+{other}"] = measure_pair(bench, (one, other), content)
            contribution.save()


def _predict_all(contribution: Contribution, predict: Predict, listener: Listener, plan: TimePlan) -> None:
    """Ask about all networks at once: the predictor's start costs more than its answers."""
    content, asked = contribution.content, {}
    hashes = content.setdefault("graphs", {})
    for name in content["networks"]:
        if plan.predicting_ms() <= 0:
            break
        if name in content["predicted"] and name in hashes:
            continue
        listener(f"predicting {name}")
        graph = export_graph(name)
        hashes[name] = graph.sha256
        if name not in content["predicted"]:
            asked[name] = (graph.content, settings_of(name))
    if asked:
        content["predicted"] |= predict(asked, max(_ANSWER_MS_MIN, plan.predicting_ms()))
    contribution.save()


def predict_offline(calibration: DeviceCalibration) -> Predict:
    """Return a function that asks the predictor, as a process of its own, about the calibrated device."""

    def predict(asked: QuestionsByName, time_ms_max: float) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, (graph, _) in asked.items():
                paths.append(Path(folder) / f"{name}.onnx")
                paths[-1].write_bytes(graph)
            jobs = [
                prediction_pb2.PredictJobRequest(
                    graph_sha256=hash_of(path),
                    settings=settings_message(settings),
                    device=calibration.device,
                    calibration=calibration_message(calibration),
                )
                for path, (_, settings) in zip(paths, asked.values(), strict=True)
            ]
            try:
                answers = ask_offline(Questions(graphs=paths, jobs=jobs), timeout_s=time_ms_max / 1e3)
            except CotenantError:
                return dict.fromkeys(asked)
        found = [MessageToDict(each, preserving_proto_field_name=True) for each in answers.jobs]
        return {name: {part: each.get(part) for part in _ANSWERED} for name, each in zip(asked, found, strict=True)}

    return predict


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


def report(contribution: Contribution) -> str:
    """Return what was measured and what was left out, in one sentence."""
    content = contribution.content
    statuses = [row["status"] for row in content["measured"].values()]
    failed = [name for name, row in content["measured"].items() if row["status"] != "ok"]
    pairs = sum(1 for rows in content["paired"].values() if rows)
    said = f"{statuses.count('ok')} of {len(content['networks'])} networks and {pairs} pairs in {contribution.path}"
    disturbed = sum(1 for row in content["measured"].values() if FOREIGN_LOAD in row["quality_flags"].split("|"))
    if disturbed:
        said += (
            f"; others used the device during {disturbed} of them: these teach nothing, measure into another file when "
            "it is free"
        )
    if failed:
        said += f"; did not run, or not in their time: {', '.join(failed)}"
    left = [*contribution.unmeasured(), *(f"{one} + {other}" for one, other in contribution.unpaired())]
    if left:
        said += f"; left out for want of time: {', '.join(left)}: the same command goes on there"
    return said
