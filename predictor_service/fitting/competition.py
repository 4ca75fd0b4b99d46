"""Which candidates compete for a target, and which of them stays unless another is better beyond chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from predictor_service.cross_device.step_model import answers_for
from predictor_service.features.devices import DeviceType, find_device_type
from predictor_service.regressors.candidates import (
    CANDIDATES,
    FASTER_FOR_PAIRS,
    SMALL_CANDIDATES,
    SMALL_MEMORY_CANDIDATES,
    STEADIER_ONCE_CHOSEN,
    STEADIER_ROWS_MAX,
    UNCORRECTED,
    CandidateBuilder,
    uncorrected,
)
from predictor_service.regressors.interface import Regressor
from predictor_service.regressors.saturation_law import SaturationLaw
from predictor_service.regressors.waiting_law import WaitingLaw
from predictor_service.selection.incumbent import Groups, Incumbent
from predictor_service.selection.targets import MEMORY, SLOWDOWN, UTILIZATION, Target

LAW: Final = "saturation_law"
"""Utilization of a GPU by the busy time of a step."""
WAITING: Final = "waiting_law"
"""Utilization of a processor by how long a step waits for input: a process that computes keeps its core busy."""
_CORRECTING: Final = ("smooth_process", "extra_trees", "boosted_trees")
"""Candidates that learn what the law misses, in place of all: on architectures not seen each of them errs less so."""
MEAN_CORRECTION: Final = "mean_correction"
"""Of what two of them learn, which err on other rows: on GPUMemNet's CNNs not seen .0310, where they err .0332 and
.0322 and boosted trees .0333, with less on each of five parts (inner folds); all three together err no less."""
_JOINED: Final = ("smooth_process", "extra_trees")


def list_candidates(
    target: Target, device: str, *, is_public: bool, is_of_all_types: bool, served_rows: int | None = None
) -> Mapping[str, CandidateBuilder]:
    """The candidates for one target of one device type, by name.

    Args:
        target: What is learned.
        device: Device type.
        is_public: Whether the models come with the program: small ones compete.
        is_of_all_types: Whether step times are learned relative to the model of all device types.
        served_rows: How many rows teach what is served; None = it is a fold that learns.
    """
    candidates = CANDIDATES
    if is_public:
        candidates = SMALL_MEMORY_CANDIDATES if target is MEMORY else SMALL_CANDIDATES
    elif target.scale == "share" and served_rows is not None and served_rows <= STEADIER_ROWS_MAX:
        candidates = {name: STEADIER_ONCE_CHOSEN.get(name, builder) for name, builder in CANDIDATES.items()}
    if is_of_all_types:  # few rows of a type may teach nothing that the model does not know
        return {UNCORRECTED: uncorrected, **candidates}
    if target is SLOWDOWN:
        return {name: FASTER_FOR_PAIRS.get(name, builder) for name, builder in CANDIDATES.items()}
    found = _device_with_law(target, device)
    if found is None:
        return candidates
    if answers_for(found):
        return _with_law(candidates, found)
    return {WAITING: lambda _seed: WaitingLaw(UTILIZATION.columns), **candidates}


def incumbent_of(target: Target, device: str, groups: Groups, *, is_of_all_types: bool) -> Incumbent | None:
    """What stays where few families show nothing better beyond chance; None where the smallest error wins.

    Of step times relative to the model of all types that model as it is, of utilization the law of such devices.

    Args:
        target: What is learned.
        device: Device type.
        groups: Of each row.
        is_of_all_types: See `list_candidates`.
    """
    if is_of_all_types:
        return Incumbent(name=UNCORRECTED, groups=groups)
    found = _device_with_law(target, device)
    return None if found is None else Incumbent(name=LAW if answers_for(found) else WAITING, groups=groups)


def _device_with_law(target: Target, device: str) -> DeviceType | None:
    """The device if its utilization follows a law: of GPUs, for which hosts launch kernels, that of busy time."""
    return find_device_type(device) if target is UTILIZATION else None


def _with_law(candidates: Mapping[str, CandidateBuilder], device: DeviceType) -> Mapping[str, CandidateBuilder]:
    correcting = {name: _correct(device, candidates[name]) for name in _CORRECTING if name in candidates}
    if all(name in candidates for name in _JOINED):
        correcting[MEAN_CORRECTION] = _correct(device, *(candidates[name] for name in _JOINED))
    return {LAW: lambda _seed: SaturationLaw(UTILIZATION.columns, device), **candidates, **correcting}


def _correct(device: DeviceType, *builders: CandidateBuilder) -> Callable[[int], Regressor]:
    return lambda seed: SaturationLaw(UTILIZATION.columns, device, *(builder(seed) for builder in builders))
