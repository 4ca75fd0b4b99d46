"""Step time on any device type: physics with fitted coefficients, a shrunk correction, and a range that held elsewhere.

`step_model.json` was made by `python -m predictor_service train-cross-device` from the public sets and comes with the
program. Its ranges are those of devices that were left out one by one; a device of a generation that taught nothing has
those of generations that were left out, and so has a slice of a device: no slice taught.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any, Final

import numpy as np

from predictor_service.cross_device.known_networks import KnownNetworks
from predictor_service.cross_device.step_correction import StepCorrection, traits_of
from predictor_service.cross_device.step_physics import (
    COEFFICIENTS,
    PRODUCT_EFFICIENCY_MAX,
    StepKind,
    products_at_peak_ms,
    step_parts,
    terms_of,
)
from predictor_service.cross_device.step_work import StepWork
from predictor_service.errors import ModelError
from predictor_service.features.devices import DeviceType, Generation, find_device_type
from predictor_service.features.graphs.affine import FloatArray

FORMAT: Final = "cotenant.cross_device_step/7"
FILE_NAME: Final = "step_model.json"
FOLDS_FILE_NAME: Final = "step_model_folds.json"
FOLDS: Final = 5
"""Models that have each seen all families of networks but every fifth, see `fold_of_family`."""
LEVELS: Final = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98)
"""Shares of left-out rows for which a range is stored; between them it is interpolated, beyond the last it is that."""
CONVOLUTIONAL: Final = "convolutional"
OTHER: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRange:
    """Step times with their ranges, milliseconds; all arrays have shape (rows,)."""

    value: FloatArray
    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossDeviceStep:
    """The model.

    Attributes:
        logs: Logarithms of the coefficients, in the order of `COEFFICIENTS`.
        correction: Of kinds of networks.
        networks: Of networks that were measured.
        widths: How far ranges reach below and above, logarithms at `LEVELS`, shape (2, levels), by kind of network, on
            devices of generations that taught.
        unseen_widths: The same on devices of other generations, and on slices.
        script_ms: What measured scripts do in every step beside a bare loop, in training and in inference.
        devices: Types that taught it.
        rows_sha256: Hash of the rows that it was made from.
    """

    logs: FloatArray
    correction: StepCorrection
    networks: KnownNetworks
    widths: Mapping[str, FloatArray]
    unseen_widths: Mapping[str, FloatArray]
    script_ms: tuple[float, float] = (0.0, 0.0)
    devices: tuple[str, ...] = ()
    rows_sha256: str = ""

    def time_ms(self, work: StepWork, kinds: Sequence[StepKind]) -> FloatArray:
        """The expected time of steps as scripts run them, see `with_script`.

        Args:
            work: Of the rows.
            kinds: One for each row, or a single one for all.
        """
        return self.with_script(self.bare_ms(work, kinds), kinds)

    def bare_ms(self, work: StepWork, kinds: Sequence[StepKind]) -> FloatArray:
        """The expected time of steps of which each costs no more than one of a bare loop; see `time_ms`.

        No row multiplied matrices in TF32; where its rate is that of fp32, libraries take what is faster.
        """
        time_ms = self._bare_ms(work, kinds)
        if not any(kind.precision == "tf32" for kind in kinds):
            return time_ms
        in_fp32 = [replace(kind, precision="fp32") if kind.precision == "tf32" else kind for kind in kinds]
        return np.minimum(time_ms, self._bare_ms(work, in_fp32))

    def _bare_ms(self, work: StepWork, kinds: Sequence[StepKind]) -> FloatArray:
        terms, traits = terms_of(work, kinds), traits_of(work, kinds)
        corrected = self.correction.log_ratio(traits) + self.networks.log_ratio(self.correction.standardise(traits))
        time_ms = step_parts(terms, self.logs).total_ms * np.exp(corrected)
        return np.maximum(time_ms, products_at_peak_ms(terms) / PRODUCT_EFFICIENCY_MAX)

    def estimate(self, work: StepWork, kind: StepKind, confidence: float) -> StepRange:
        """The time of one job at several batches, with the range that held so often on devices left out.

        The upper end of a tiny step has what measured scripts do beside it. No lower end is above the bare loop, or
        below the time of the matrix products at the device's peak.

        Args:
            work: Of the job at its batches.
            kind: The same for all of them.
            confidence: Share of rows, 0 to below 1.
        """
        bare_ms, terms = self.bare_ms(work, [kind]), terms_of(work, [kind])
        value, script_ms = self.with_script(bare_ms, [kind]), self.script_of(kind)
        is_known = not kind.device.is_slice and kind.device.generation in generations_of(self.devices)
        widths = (self.widths if is_known else self.unseen_widths)[kind_of_network(work)]
        below, above = (math.exp(float(np.interp(confidence, LEVELS, each))) for each in widths)
        lower = np.maximum(np.minimum(value / below, bare_ms), products_at_peak_ms(terms))
        return StepRange(value=value, lower=lower, upper=np.maximum(value * above, bare_ms + script_ms))

    def with_script(self, bare_ms: FloatArray, kinds: Sequence[StepKind]) -> FloatArray:
        """What steps of scripts take, shape (rows,).

        Scripts do milliseconds beside every step that was measured. Of a long step all of it counts; a step that is
        short beside it is taken as one of a bare loop: what reads the input of a tiny network is no part of the
        network, and a job states its wait for input itself.

        Args:
            bare_ms: What a bare loop takes.
            kinds: One for each, or a single one for all.
        """
        script_ms = np.array([self.script_of(kind) for kind in kinds])
        return np.asarray(bare_ms + script_ms * bare_ms**2 / (bare_ms**2 + script_ms**2), dtype=np.float64)

    def script_of(self, kind: StepKind) -> float:
        """What measured scripts do beside a step of this kind, milliseconds."""
        return self.script_ms[0 if kind.is_training else 1]

    def to_json(self) -> str:
        """As stored, one line."""
        stored = {
            "format": FORMAT,
            "rows_sha256": self.rows_sha256,
            "devices": list(self.devices),
            "coefficients": {
                name: float(f"{math.exp(value):.6g}") for name, value in zip(COEFFICIENTS, self.logs, strict=True)
            },
            "levels": list(LEVELS),
            "widths": _widths_to_json(self.widths),
            "unseen_widths": _widths_to_json(self.unseen_widths),
            "script_ms": [float(f"{each:.4g}") for each in self.script_ms],
            "correction": self.correction.to_json(),
            "networks": self.networks.to_json(),
        }
        return json.dumps(stored) + "\n"

    @classmethod
    def from_json(cls, text: str) -> CrossDeviceStep:
        """Reads what `to_json` wrote.

        Raises:
            ModelError: It is of another format, or damaged.
        """
        try:
            stored: dict[str, Any] = json.loads(text)
            if stored["format"] != FORMAT:
                raise ModelError(
                    f"{FILE_NAME} is of format {stored['format']}, this program reads {FORMAT}",
                    remedy="install the program again, or make the file again with train-cross-device",
                )
            return cls(
                logs=np.log([float(stored["coefficients"][name]) for name in COEFFICIENTS]),
                correction=StepCorrection.from_json(stored["correction"]),
                networks=KnownNetworks.from_json(stored["networks"]),
                widths=_widths_from_json(stored["widths"]),
                unseen_widths=_widths_from_json(stored["unseen_widths"]),
                script_ms=(float(stored["script_ms"][0]), float(stored["script_ms"][1])),
                devices=tuple(stored["devices"]),
                rows_sha256=str(stored["rows_sha256"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{FILE_NAME} is damaged ({error})", remedy="install the program again") from error


def kind_of_network(work: StepWork) -> str:
    """Which networks' errors are its range: those with as many convolutions, or the others."""
    convolution = float((work.convolution_flops_per_sample + work.depthwise_flops_per_sample)[0])
    return CONVOLUTIONAL if convolution > float(work.product_flops_per_sample[0]) else OTHER


def answers_for(device: DeviceType) -> bool:
    """Whether the model speaks of a device: it knows GPUs of a generation, not processors."""
    return device.generation is not Generation.PROCESSOR


@lru_cache(maxsize=64)
def generations_of(devices: tuple[str, ...]) -> frozenset[Generation]:
    """The generations of device types; of names that the table lacks none."""
    found = (find_device_type(name) for name in devices)
    return frozenset(device.generation for device in found if device is not None)


def fold_of_family(family: str) -> int:
    """Which of the `FOLDS` models has not seen a family, on whatever device."""
    return int(hashlib.sha256(family.encode()).hexdigest(), 16) % FOLDS


@cache
def load_step_model() -> CrossDeviceStep:
    """Reads the model that comes with the program.

    Raises:
        ModelError: It is damaged.
    """
    return CrossDeviceStep.from_json(_read(FILE_NAME))


@cache
def load_step_folds() -> tuple[CrossDeviceStep, ...]:
    """Reads the models that have not seen every fifth family, by the number of `fold_of_family`.

    What is learned of a device type beside the model of all is learned, and judged, by what they say: the model of all
    has seen the very rows that a public set states.

    Raises:
        ModelError: They are damaged.
    """
    lines = _read(FOLDS_FILE_NAME).splitlines()
    if len(lines) != FOLDS:
        raise ModelError(f"{FOLDS_FILE_NAME} is damaged ({len(lines)} models)", remedy="install the program again")
    return tuple(CrossDeviceStep.from_json(line) for line in lines)


def _read(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def _widths_to_json(widths: Mapping[str, FloatArray]) -> dict[str, list[list[float]]]:
    return {
        kind: [[float(f"{value:.4g}") for value in side] for side in sides] for kind, sides in sorted(widths.items())
    }


def _widths_from_json(stored: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, FloatArray]:
    found = {kind: np.array(stored[kind], dtype=np.float64) for kind in (CONVOLUTIONAL, OTHER)}
    if any(each.shape != (2, len(LEVELS)) for each in found.values()):
        raise ValueError("a range does not reach below and above at every level")
    return found
