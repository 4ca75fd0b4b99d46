"""A package of models as it comes with the program: learned from a small invented set of an A100."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from unittest import mock

from cotenant.profile_schema import SoloRow
from predictor_service.fitting import competition
from predictor_service.registry.public_version import PackedVersion
from predictor_service.regressors.candidates import CANDIDATES
from predictor_service.retraining.carried_devices import carry_over, models_of_package
from predictor_service.retraining.datasets import Dataset, read_dataset
from predictor_service.retraining.training import train_version
from tests.support.measured_dataset import write_dataset
from tests.support.table_dataset import table_rows, write_table_dataset

SEED = 0
_FEW = {name: CANDIDATES[name] for name in ("constant_correction", "ridge")}


def few_candidates() -> mock._patch_dict:
    """Return a context in which two simple candidates compete."""
    return mock.patch.multiple(competition, CANDIDATES=_FEW, SMALL_CANDIDATES=_FEW)  # type: ignore[return-value]


@cache
def public_set() -> Dataset:
    """Return the set of others."""
    folder = Path(mkdtemp(prefix="cotenant-test-public-")) / "others"
    write_table_dataset(folder)
    return read_dataset(folder)


@cache
def standin_datasets() -> Path:
    """Return a folder with the data set that the stand-in's models were learned from."""
    folder = Path(mkdtemp(prefix="cotenant-test-own-"))
    write_dataset(folder / "invented")
    return folder


@cache
def packed_version() -> PackedVersion:
    """Return the stand-in's models and those of others, in one version."""
    own = [read_dataset(standin_datasets() / "invented")]
    with few_candidates():
        public = train_version([public_set()], SEED, is_public=True)
        trained = train_version(own, SEED)
    source = models_of_package(PackedVersion(manifest=public.manifest, files=public.files))
    joined = carry_over(trained, own, source)
    return PackedVersion(manifest=joined.manifest, files=joined.files)


def own_rows(memory_factor: float, architectures: int | None = None) -> list[SoloRow]:
    """Return rows of an own A100, whose jobs hold so many times what the public ones do.

    Args:
        memory_factor: Of the memory.
        architectures: Of the first so many networks only; None = of all.
    """
    rows = table_rows(seed=5, campaign="own")
    names = list(dict.fromkeys(row.architecture for row in rows))[:architectures]
    return [
        dataclasses.replace(row, memory_peak_bytes=int(memory_factor * (row.memory_peak_bytes or 0)))
        for row in rows
        if row.architecture in names
    ]
