"""What was measured of running jobs becomes training rows: one for each job alone and one for each pair, of medians.

Learned from are measurement windows without quality flags, of undivided batches, in which a job was
measured over at least ten seconds altogether. A graph that a data set knows keeps that set's architecture and family;
so does any other graph of as many parameters, which is the same network written anew. What remains is a family of its
own, however its dimensions are bound, so that it is held out alone. Jobs whose graph this service does not keep are
rows without a graph: their pairs teach slowdowns, they themselves nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from cotenant.profile_schema import PairRow, SoloRow
from predictor_service.errors import GraphError, GraphLimitError
from predictor_service.features.graphs.graph_description import GraphDescription, describe_graph
from predictor_service.features.graphs.graph_limits import DEFAULT_LIMITS
from predictor_service.features.untaught_settings import name_untaught
from predictor_service.profile_store.measurement_window import MeasurementWindow, StoredMeasurementWindow
from predictor_service.profile_store.rows import Names, drop_duplicate_reports, make_rows, own_names
from predictor_service.registry.device_change import DeviceChange
from predictor_service.retraining.datasets import COLLECTED, Dataset
from predictor_service.retraining.restated_rows import restate_window

NAME: Final = COLLECTED
BINDINGS_PER_GRAPH_MAX: Final = 32
TOO_MANY_BINDINGS: Final = f"its graph was bound in more than {BINDINGS_PER_GRAPH_MAX} ways"
MEASURED_MS_MIN: Final = 10_000
TOO_SHORT: Final = f"measured over less than {MEASURED_MS_MIN // 1000} s altogether"
Row = TypeVar("Row", SoloRow, PairRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedProfiles:
    """What became of the measurement windows.

    Attributes:
        dataset: None when nothing can be learned from them.
        left_out: Windows left out by reason.
        alone: Windows of jobs alone that were usable, oldest first, as they would be measured today; `at_ms` is set.
    """

    dataset: Dataset | None
    left_out: Mapping[str, int]
    alone: Sequence[StoredMeasurementWindow] = ()


def collect_profiles(
    stored: Iterable[StoredMeasurementWindow],
    graphs_folder: Path,
    known: Sequence[Dataset],
    changes: Sequence[DeviceChange] = (),
) -> CollectedProfiles:
    """Turns measurement windows into a data set.

    Args:
        stored: As the store keeps them.
        graphs_folder: Where the service keeps graphs by hash.
        known: Data sets that name architectures and families of graphs.
        changes: By which windows of before are restated.
    """
    left_out = Counter[str]()
    graphs = _Graphs(graphs_folder)
    stored = [restate_window(item, changes) for item in stored]
    usable = list(_usable(stored, graphs, left_out))
    rows = make_rows(usable, graphs.name_networks(known))
    left_out += rows.left_out
    windows_ms = {window.window_id: window.window_ms for window in usable}
    measured = [row for row in rows.solo if row.status == "ok"]
    solo = [graphs.name(_median_solo(members)) for members in _long_enough(measured, windows_ms, left_out)]
    if not solo:
        return CollectedProfiles(dataset=None, left_out=dict(left_out))
    pairs = [_median_pair(members) for members in _long_enough(rows.pairs, windows_ms, left_out)]
    digest = hashlib.sha256("\n".join(repr(row) for row in (*solo, *pairs)).encode()).hexdigest()
    dataset = Dataset(name=NAME, solo=tuple(solo), pairs=tuple(pairs), graphs=graphs.described, sha256=digest)
    kept = {window.window_id for window in usable if not window.others}
    alone = [item for item in stored if item.window is not None and item.window.window_id in kept]
    return CollectedProfiles(dataset=dataset, left_out=dict(left_out), alone=alone)


class _Graphs:
    """Describes kept graphs, each in every way in which jobs bound it, and names each by graph and bindings."""

    def __init__(self, folder: Path) -> None:
        self.described: dict[str, GraphDescription] = {}
        self._folder = folder
        self._names: dict[str, str] = {}
        self._faulty: set[str] = set()
        self._ways: dict[str, set[str]] = defaultdict(set)

    def find_fault(self, window: MeasurementWindow) -> str:
        """Returns why nothing can be learned about the graph of a window; empty when something can."""
        graph_sha256, bindings = window.job.graph_sha256, window.job.settings.dimension_bindings
        name = _name_bound(graph_sha256, bindings)
        if name not in self._ways[graph_sha256] and len(self._ways[graph_sha256]) >= BINDINGS_PER_GRAPH_MAX:
            return TOO_MANY_BINDINGS
        self._ways[graph_sha256].add(name)
        self._names[window.job.key] = name
        if name not in self.described and name not in self._faulty and self._path(graph_sha256).is_file():
            try:
                self.described[name] = self._describe(graph_sha256, bindings)
            except (GraphError, OSError):
                self._faulty.add(name)
        return "its graph cannot be described" if name in self._faulty else ""

    def name_networks(self, known: Sequence[Dataset]) -> Names:
        """Architecture and family by graph hash, equal for graphs of as many parameters.

        The same network has another hash as another batch, binding or version of an exporter wrote it. As a family of
        its own it would be judged by what it was learned from.
        """
        names = dict(_names(known))
        described = {sha256: graph for dataset in known for sha256, graph in dataset.graphs.items()}
        alike = {graph.stored.parameters: names[sha256] for sha256, graph in described.items() if sha256 in names}
        for graph_sha256, ways in self._ways.items():
            found = [graph for way in sorted(ways) if (graph := self.described.get(way))]
            if graph_sha256 not in names and found and found[0].stored.parameters:
                names[graph_sha256] = alike.setdefault(found[0].stored.parameters, own_names(graph_sha256))
        return names

    def name(self, row: SoloRow) -> SoloRow:
        """Returns the row with the graph as its job bound it, by the name under which `described` has it."""
        return dataclasses.replace(row, graph_sha256=self._names.get(row.job_key, row.graph_sha256))

    def _path(self, graph_sha256: str) -> Path:
        return self._folder / f"{graph_sha256}.onnx"

    def _describe(self, graph_sha256: str, bindings: Mapping[str, int]) -> GraphDescription:
        path = self._path(graph_sha256)
        if path.stat().st_size > DEFAULT_LIMITS.graph_bytes:
            raise GraphLimitError(f"{path.name} is too large", remedy="send it without its weights")
        return describe_graph(path.read_bytes(), bindings)


def _name_bound(graph_sha256: str, bindings: Mapping[str, int]) -> str:
    """The hash of a graph whose dimensions are bound; that of the graph itself where none is."""
    bound = f"{graph_sha256} {sorted(bindings.items())}"
    return hashlib.sha256(bound.encode()).hexdigest() if bindings else graph_sha256


def _usable(
    stored: Iterable[StoredMeasurementWindow], graphs: _Graphs, left_out: Counter[str]
) -> Iterator[MeasurementWindow]:
    readable = []
    for item in stored:
        if item.window is None or item.fault:
            left_out[item.fault] += 1
        else:
            readable.append(item.window)
    for window in drop_duplicate_reports(readable, left_out):
        reason = _refuse(window) or graphs.find_fault(window)
        if reason:
            left_out[reason] += 1
        else:
            yield window


def _refuse(window: MeasurementWindow) -> str:
    """Why a window teaches nothing; empty when it does."""
    if window.quality_flags:
        return "flagged: " + ", ".join(sorted(window.quality_flags))
    untaught = name_untaught(window.job.settings)
    if untaught:
        return f"with settings that no row states: {', '.join(untaught)}"
    if window.job.settings.input_wait_ms >= window.step_ms:
        return "its stated wait for input is longer than its step"
    return "its batch was divided" if window.micro_batch_size != window.job.settings.global_batch_size else ""


def _names(known: Sequence[Dataset]) -> Names:
    return {
        row.graph_sha256: (row.architecture, row.family)
        for dataset in known
        for row in dataset.solo
        if row.graph_sha256
    }


def _long_enough(rows: Iterable[Row], windows_ms: Mapping[str, int], left_out: Counter[str]) -> Iterator[list[Row]]:
    """Rows of the same jobs on the same device type, whatever the machine, where they were measured for long enough."""
    groups = defaultdict[tuple[str, ...], list[Row]](list)
    for row in rows:
        groups[_who(row)].append(row)
    for _, members in sorted(groups.items(), key=lambda item: item[0]):
        if sum(windows_ms[row.run_id] for row in members) >= MEASURED_MS_MIN:
            yield members
        else:
            left_out[TOO_SHORT] += len(members)


def _who(row: SoloRow | PairRow) -> tuple[str, ...]:
    if isinstance(row, SoloRow):
        return row.device, row.job_key
    return row.device, row.share_mode, row.victim_job_key, *row.other_job_keys


def _median_solo(members: Sequence[SoloRow]) -> SoloRow:
    memory_bytes = _median(row.memory_peak_bytes for row in members)
    return dataclasses.replace(
        members[0],
        campaign=NAME,
        steps=sum(row.steps for row in members),
        input_wait_ratio=median(row.input_wait_ratio for row in members),
        step_ms_mean=_median(row.step_ms_mean for row in members),
        utilization_ratio=_median(row.utilization_ratio for row in members),
        sm_activity_ratio=_median(row.sm_activity_ratio for row in members),
        memory_peak_bytes=None if memory_bytes is None else int(memory_bytes),
        memory_context_bytes=None if memory_bytes is None else 0,
        power_watts=_median(row.power_watts for row in members),
    )


def _median_pair(members: Sequence[PairRow]) -> PairRow:
    """The row in the middle, whole: its times and its slowdown belong together."""
    ordered = sorted(members, key=lambda row: (row.slowdown_ratio or 0.0, row.run_id))
    return dataclasses.replace(ordered[(len(ordered) - 1) // 2], campaign=NAME, repeat=0)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(median(known)) if known else None
