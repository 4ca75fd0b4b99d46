"""Measured step times of GPUs from every data set that states them, for the model of all device types.

Left out, because they are no time of one step on one device alone: rows of several devices, of slices, rows that a set
or we flagged as of another network or unit, compiled models, other memory layouts, and TensorFlow's first minute.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from cotenant.profile_schema import SoloRow
from predictor_service.cross_device.step_physics import StepKind
from predictor_service.cross_device.step_work import StepWork, work_of_facts
from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.learning.graph_tables import REFERENCE, find_figures
from predictor_service.learning.profile_files import read_profiles

SETS: Final = ("gavel", "pollux", "salus", "timm_bench", "torchvision_bench")
"""Below datasets/public; cpu_standin is no GPU, MISO's slices are of a device that no other set has and judge only."""
_LEFT_OUT: Final = frozenset(
    {
        "step_unit_differs",
        "features_of_another_network",
        "batch_not_published",
        "includes_start_up",
        "image_size_drawn",
    }
)
_COMPILED_CAMPAIGN: Final = re.compile(r"infer_torch\d+_compiled")
USUAL_LAYOUT: Final = "nchw"
_ROWS_PER_GROUP: Final = 60
_NETWORKS_PER_GROUP: Final = 600
_SLOTS: Final[Mapping[str, float]] = {"sgd": 0.0, "momentum": 1.0, "adam": 2.0, "adamw": 2.0, "none": -1.0}


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One measured step.

    Attributes:
        set_name: The data set.
        machine: The set's campaign on a device: rows of which a large set has too many alike are drawn from each.
        device: The device type by name.
        architecture: As the set names it.
        family: Of the architecture.
        kind: What the time depends on apart from the work.
        facts: Figures of the graph.
        batch: Samples per device.
        step_ms: Measured.
    """

    set_name: str
    machine: str
    device: str
    architecture: str
    family: str
    kind: StepKind
    facts: Mapping[str, float]
    batch: int
    step_ms: float

    @property
    def site(self) -> str:
        """Set and device: its campaigns share scripts and habits, and are one witness of what the device can do."""
        return f"{self.set_name}|{self.device}"

    @property
    def group(self) -> str:
        """Rows of which a large set has too many alike."""
        return f"{self.machine}|{self.kind.precision}|{self.kind.is_training}"

    @cached_property
    def work(self) -> StepWork | None:
        """What the step does, counted once for the many fits that ask; None where the figures do not say it."""
        return work_of_facts([(self.facts, self.batch)])


def read_step_rows(root: Path, sets: Iterable[str] = SETS) -> list[StepRow]:
    """Reads the rows of public sets.

    Args:
        root: The folder of the sets.
        sets: Their names.

    Raises:
        TrainingDataError: A set is absent or broken.
    """
    return [
        row for name in sets for solo in read_profiles(root / name).solo if (row := _read_row(name, solo)) is not None
    ]


def thin_rows(rows: Iterable[StepRow]) -> list[StepRow]:
    """At most sixty rows of each machine, precision and mode, chosen by hash: the same ones every time."""
    groups: dict[str, list[StepRow]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return [row for group in groups.values() for row in sorted(group, key=_order)[:_ROWS_PER_GROUP]]


def rows_of_common_networks(rows: Iterable[StepRow]) -> list[StepRow]:
    """At most six hundred rows of each machine, precision and mode: of the same networks wherever these ran."""
    groups: dict[str, list[StepRow]] = defaultdict(list)
    for row in rows:
        groups[row.group].append(row)
    return [row for group in groups.values() for row in sorted(group, key=_order_of_network)[:_NETWORKS_PER_GROUP]]


def hash_rows(rows: Iterable[StepRow]) -> str:
    """Hash over everything that the model learns from."""
    digest = hashlib.sha256()
    for line in sorted(_identity(row) for row in rows):
        digest.update(line.encode())
    return digest.hexdigest()


def work_of_rows(rows: Iterable[StepRow]) -> StepWork:
    """The work of rows that `read_step_rows` returned."""
    each = [row.work for row in rows]
    known = [work for work in each if work is not None]
    assert len(known) == len(each)  # rows without it were left out
    return StepWork(
        **{item.name: np.concatenate([getattr(work, item.name) for work in known]) for item in fields(StepWork)}
    )


def _read_row(set_name: str, row: SoloRow) -> StepRow | None:
    step_ms = row.step_ms_p50 or row.step_ms_mean
    if row.status != "ok" or step_ms is None or row.gpus > 1 or row.nodes > 1 or _LEFT_OUT & set(row.quality_flags):
        return None
    published = json.loads(row.features_json or "{}")
    device = find_device_type(row.device)
    if device is None or not runs_as_usual(row):
        return None
    campaign = "" if set_name == "timm_bench" else row.campaign
    found = StepRow(
        set_name=set_name,
        machine=f"{set_name}|{row.device}|{campaign}",
        device=row.device,
        architecture=row.architecture,
        family=row.family,
        kind=kind_of_row(row, device),
        facts=dict(_facts(published)),
        batch=row.sub_batch,
        step_ms=step_ms,
    )
    return found if found.work is not None else None


def runs_as_usual(row: SoloRow) -> bool:
    """The same as `steps_as_usual` of a row as it is stored."""
    published = json.loads(row.features_json or "{}")
    return steps_as_usual(row.campaign, published.get("set.layout", USUAL_LAYOUT))


def steps_as_usual(campaign: str, layout: str) -> bool:
    """Whether a measured model was neither compiled nor had its images in another memory layout.

    No column says that a model was compiled, but the names that `importers/timm_bench.py` gives to campaigns; a
    campaign of any other name may have the word in it.
    """
    return not _COMPILED_CAMPAIGN.fullmatch(campaign) and layout == USUAL_LAYOUT


def kind_of_row(row: SoloRow, device: DeviceType) -> StepKind:
    """What the time of a row depends on apart from its work."""
    return StepKind(
        device=device,
        precision=row.precision,
        is_training=row.mode == "train",
        framework=row.framework,
        optimizer_slots=_SLOTS.get(row.optimizer, 1.0),
    )


def _facts(published: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    if isinstance(reference := published.get(REFERENCE), str):
        yield from find_figures(reference).items()
    for name, value in published.items():
        if name.startswith("graph.") and isinstance(value, int | float):
            yield name.removeprefix("graph."), float(value)


def _order(row: StepRow) -> str:
    return hashlib.sha256(_identity(row).encode()).hexdigest()


def _order_of_network(row: StepRow) -> tuple[str, str]:
    return hashlib.sha256(row.architecture.encode()).hexdigest(), _order(row)


def _identity(row: StepRow) -> str:
    return json.dumps(
        [row.machine, row.architecture, row.kind.precision, row.kind.is_training, row.batch, f"{row.step_ms:.6g}"]
    )
