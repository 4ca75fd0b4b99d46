"""Models that come with the program against what own rows teach: whichever errs less on the own rows is served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from predictor_service.features.devices import find_device_type
from predictor_service.fitting.answers import forecast_known
from predictor_service.fitting.known_rows import name_rows
from predictor_service.registry.held_out import HeldOut, HeldOutRows
from predictor_service.registry.manifest import Manifest, TargetRecord
from predictor_service.registry.served_version import load_target
from predictor_service.retraining.datasets import Dataset
from predictor_service.retraining.gate import errors_of
from predictor_service.retraining.learned_rows import select_rows
from predictor_service.selection.targets import TARGETS_BY_NAME


class PublicTarget(NamedTuple):
    """A target that comes with the program.

    Attributes:
        device: Device type.
        record: Its entry in the manifest.
        held_out: What it predicted of the rows that taught it; None where that was not kept.
        read: Returns the content of a file by its name.
    """

    device: str
    record: TargetRecord
    held_out: HeldOutRows | None
    read: Callable[[str], bytes]


def is_better(public: PublicTarget, datasets: Sequence[Dataset], own: HeldOutRows) -> bool:
    """Whether a target that comes with the program errs no more on own rows than what these teach.

    Args:
        public: Of rows that taught it too, what counts is what it predicted when they were held out.
        datasets: The own rows.
        own: What was predicted of them by models that had not seen their families.
    """
    device = find_device_type(public.device)
    if device is None:
        return False
    target = TARGETS_BY_NAME[public.record.target]
    rows = select_rows(datasets, target, device).learned
    files = {name: public.read(name) for name in public.record.file_names}
    values = forecast_known(load_target(public.record, files), rows).value.tolist()
    answered = dict(zip(name_rows(rows), values, strict=True))
    if public.held_out is not None:
        answered |= {
            name: value
            for name, value in zip(public.held_out.row_ids, public.held_out.predicted, strict=True)
            if name in answered
        }
    predicted = HeldOutRows(
        row_ids=own.row_ids,
        measured=own.measured,
        predicted=tuple(answered[name] for name in own.row_ids),
        groups=own.groups,
    )
    errors = [float(np.mean(errors_of(target.name, each))) for each in (predicted, own)]
    return errors[0] <= errors[1]


def without_public(held_out: HeldOut, manifest: Manifest) -> HeldOut:
    """Held-out rows of a version but for the targets that came with the program: these do not defend themselves."""
    return {
        device: {target: rows for target, rows in targets.items() if not _is_public(manifest, device, target)}
        for device, targets in held_out.items()
    }


def _is_public(manifest: Manifest, device: str, target: str) -> bool:
    record = manifest.targets.get(device, {}).get(target)
    return record is not None and record.is_public
