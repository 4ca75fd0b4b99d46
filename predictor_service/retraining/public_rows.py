"""Which rows of public data sets teach the models of device types that come with the program, and what of them.

Each set that measured jobs alone on whole GPUs of a named type teaches what others measure alike. Not among them: MISO
(memory pools and utilization of TensorFlow on slices), Alnair (its device is not named), ISA-CP (ratios only) and
nanoGPT's curves; nor compiled models, other memory layouts, and rows that a set or we flagged as of another network or
with the start of their process. The sets teach the laws of all device types where they can, see docs/accuracy.md.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from cotenant.profile_schema import SoloRow
from predictor_service.learning.cross_device_rows import runs_as_usual
from predictor_service.registry.public_version import TEACHING_SETS
from predictor_service.retraining.datasets import PUBLIC, Dataset, read_dataset

_DOUBTED: Final = frozenset({"features_of_another_network", "includes_start_up"})
_OTHER_POOLS: Final = "tensorflow"
"""It takes memory in pools and counts without a context: no measure of what a job in PyTorch holds."""


def read_public_datasets(root: Path) -> list[Dataset]:
    """Reads the public sets that teach models of device types.

    Args:
        root: Folder of data sets, with the public ones below it.

    Raises:
        TrainingDataError: One is absent or broken.
    """
    return [_of_jobs_alone(read_dataset(root / PUBLIC / name)) for name in TEACHING_SETS]


def _of_jobs_alone(dataset: Dataset) -> Dataset:
    solo = tuple(_without_pools(row) for row in dataset.solo if _teaches(row))
    return dataclasses.replace(dataset, solo=solo, pairs=())


def _teaches(row: SoloRow) -> bool:
    return row.status == "ok" and runs_as_usual(row) and not _DOUBTED & set(row.quality_flags)


def _without_pools(row: SoloRow) -> SoloRow:
    if not row.framework.startswith(_OTHER_POOLS):
        return row
    return dataclasses.replace(row, memory_peak_bytes=None, memory_reserved_bytes=None, utilization_ratio=None)
