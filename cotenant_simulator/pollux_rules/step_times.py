"""Measured step times of an application by the shape of its allocation and the samples per GPU.

Source:
    The Pollux artifact (petuum/adaptdl, branch osdi21-artifact), simulator/applications.py: placements up to four nodes
    as measured, larger ones by its interpolation, which the file unmeasured.csv holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from cotenant_simulator.pollux_rules.csv_rows import group_lines
from cotenant_simulator.pollux_rules.errors import ProfileError

_MEASURED_COLUMNS = ("application", "placement", "local_batch_size", "step_time_s", "sync_time_s")
_UNMEASURED_COLUMNS = ("application", "num_nodes", "num_gpus", "local_batch_size", "step_time_s", "sync_time_s")
_MEASURED_NODES_MAX = 4
_NODES_MAX = 16

Curve = tuple[list[int], list[float], list[float]]
"""Samples per GPU ascending, step times and sync times in seconds at each."""


class StepTimes:
    """Step and sync times in seconds, linear between the measured samples per GPU.

    Args:
        folder: The folder with placements.csv and unmeasured.csv.

    Raises:
        ProfileError: A file is missing or has other columns.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines = group_lines(folder / "placements.csv", _MEASURED_COLUMNS, ProfileError)
        self._large_lines: dict[str, list[str]] | None = None
        self._curves: dict[str, Curve] = {}
        self._found: dict[tuple[str, int], tuple[float, float]] = {}

    def at(self, application: str, gpus_by_node: Sequence[int], local_samples: int) -> tuple[float, float]:
        """Return (step, sync) time in seconds of one pass.

        Args:
            application: Its name in the profiles.
            gpus_by_node: GPUs on each node, in the order in which the nodes were given.
            local_samples: Samples per GPU and pass.

        Raises:
            ProfileError: The allocation or these samples per GPU were not measured.
        """
        key = _key(application, gpus_by_node)
        found = self._found.get((key, local_samples))
        if found is None:
            found = self._found[key, local_samples] = self._interpolate(key, local_samples)
        return found

    def _interpolate(self, key: str, local_samples: int) -> tuple[float, float]:
        samples, steps, syncs = self._curve(key)
        if not samples[0] <= local_samples <= samples[-1]:
            raise ProfileError(
                f"{key}: step times are known for {samples[0]} to {samples[-1]} samples per GPU, not {local_samples}"
            )
        high = max(bisect_left(samples, local_samples), 1) if len(samples) > 1 else 0
        if samples[high] == local_samples:
            return steps[high], syncs[high]
        low = high - 1
        part = (local_samples - samples[low]) / (samples[high] - samples[low])
        return steps[low] + part * (steps[high] - steps[low]), syncs[low] + part * (syncs[high] - syncs[low])

    def _curve(self, key: str) -> Curve:
        curve = self._curves.get(key)
        if curve is None:
            curve = self._curves[key] = _parsed(key, self._lines_of(key))
        return curve

    def _lines_of(self, key: str) -> list[str]:
        lines = self._lines.get(key)
        if lines is not None:
            return lines
        if self._large_lines is None:
            self._large_lines = group_lines(self._folder / "unmeasured.csv", _UNMEASURED_COLUMNS, ProfileError)
        lines = self._large_lines.get(key)
        if lines is None:
            raise ProfileError(
                f"no step times for {key!r} in placements.csv or unmeasured.csv of {self._folder}; the profiles cover "
                f"16 nodes of 4 GPUs"
            )
        return lines


def _key(application: str, gpus_by_node: Sequence[int]) -> str:
    """Return how the tables name an allocation: the smallest rotation up to four nodes, else nodes and GPUs."""
    nodes = len(gpus_by_node)
    if nodes > _MEASURED_NODES_MAX:
        return f"{application},{min(nodes, _NODES_MAX)},{sum(gpus_by_node)}"
    digits = "".join(map(str, gpus_by_node))
    return f"{application},{min(digits[start:] + digits[:start] for start in range(nodes))}"


def _parsed(key: str, lines: Sequence[str]) -> Curve:
    try:
        rows = sorted(
            (int(samples), float(step), float(sync))
            for samples, step, sync in (line.rsplit(",", 3)[1:] for line in lines)
        )
    except ValueError as problem:
        raise ProfileError(f"the step times of {key!r} are no numbers: {problem}") from problem
    samples = [row[0] for row in rows]
    if len(set(samples)) < len(samples):
        raise ProfileError(f"the step times of {key!r} name the same number of samples per GPU twice")
    if any(not (isfinite(step) and 0 <= sync <= step and step > 0) for _, step, sync in rows):
        raise ProfileError(f"the step times of {key!r} must be positive, and no sync time longer than its step")
    return samples, [row[1] for row in rows], [row[2] for row in rows]
