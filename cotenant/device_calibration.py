"""What was measured of the very device at hand: one frozen record from the node to the predictor.

A device type has published peaks; a device has what it really reaches. `cotenant calibrate` and an agent's first start
measure it once per device and driver; the record is kept with the node's state, sent with its inventory, and handed to
the predictor with every question about that device type. Nothing in it names a machine, a user or a path.

    scale of step times = what the anchors took here / what they took where the models were trained

A record comes from files and from the network, so that `checked` refuses whatever no device can be.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from cotenant.device_sharing import DeviceSharing, read_sharing
from cotenant.errors import InputError
from cotenant.job_settings import BATCH_SIZE_MAX, OPTIMIZERS, PRECISIONS

FORMAT: Final = "cotenant.device_calibration/1"
CODE_VERSION: Final = 6
"""Of the measuring method: a record of another version is measured again."""
NOT_YET: Final = "it is measured as soon as the node is free"
"""Why a device is not calibrated whose agent is still at it."""
FILE_BYTES_MAX: Final = 64 << 10
ANCHORS_MAX: Final = 8
PAIRS_MAX: Final = 16
"""Ordered pairs of anchors."""
_REMEDY: Final = "measure it with `cotenant calibrate`"
_NOT_OF_THEIR_TYPE: Final = "calibration: rates, anchors or pairs are not of their type"
_TEXT_MAX: Final = 128
# Clocks of two machines differ a little; a day is no difference.
_CLOCK_AHEAD_MS: Final = 24 * 3_600_000
_MEMORY_BYTES_MAX: Final = 1 << 44
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_NETWORK: Final = re.compile(r"[a-z0-9_.-]{1,64}")
# Lower and upper bound of what a device may be, an abacus and ten racks of B200 included.
_FLOPS: Final = (1e5, 1e18)
_BYTES_PER_S: Final = (1e5, 1e16)
_LAUNCH_MS: Final = (1e-6, 1e3)
_HOST_STEPS_PER_S: Final = (1e-2, 1e7)
_STEP_MS: Final = (1e-4, 3.6e6)
_SLOWDOWN: Final = (0.0, 1e3)
_HEAD_START_MS: Final = (0.0, 1e3)
"""No quota is granted for longer than a second at once."""
_SPEED_WANDER: Final = (0.0, 10.0)
_WAIT_MAX: Final = 0.99


class CalibrationError(InputError):
    """A calibration states what cannot be, or is no calibration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRates:
    """What one number format really reaches, sustained.

    Attributes:
        matmul_flops_per_s: Of large matrix products, FLOP/s.
        convolution_flops_per_s: Of ordinary convolutions, forward and backward, FLOP/s.
    """

    matmul_flops_per_s: float
    convolution_flops_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A network of the zoo, measured here as the training sets' networks were measured there.

    Attributes:
        network: Name in the zoo.
        graph_sha256: Hash of its stripped graph.
        batch_size: Samples per step.
        precision: As in JobSettings.
        optimizer: As in JobSettings.
        step_ms: Mean duration of a step over all windows in which it was alone.
        step_spread_ratio: (largest - smallest) / median over its first windows: the anchor's own noise, 0 or more.
        memory_peak_bytes: Of a job that trains it, as an agent counts: by the driver, or beyond the bare framework.
        utilization_ratio: Share of time in which the device was busy, 0 to 1; it waits for no input.
    """

    network: str
    graph_sha256: str
    batch_size: int
    step_ms: float
    memory_peak_bytes: int
    step_spread_ratio: float = 0.0
    utilization_ratio: float = 1.0
    precision: str = "fp32"
    optimizer: str = "sgd"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorPair:
    """What one anchor lost while another one ran on the same device.

    Two that wait do so for different times where their steps take about as long: else they would stay in one phase.

    Attributes:
        victim: Network of the anchor that was slowed down.
        other: Network of the co-located one.
        slowdown_ratio: Mean step together over that alone right before and after, less 1; 0 or more.
        input_wait_ratio: Share of a step alone that the victim was made to wait, as jobs wait for input; 0 to below 1.
        other_input_wait_ratio: The same of the other one.
    """

    victim: str
    other: str
    slowdown_ratio: float
    input_wait_ratio: float = 0.0
    other_input_wait_ratio: float = 0.0

    @property
    def sides(self) -> tuple[tuple[str, float], tuple[str, float]]:
        """Victim and other one, each by its network and the share that it waited."""
        return (self.victim, self.input_wait_ratio), (self.other, self.other_input_wait_ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCalibration:
    """What was measured of one device.

    Attributes:
        device: Device type by name, as the node offers it.
        measured_at_ms: Milliseconds since 1970.
        context_bytes: Device memory that a process holds before it has computed anything.
        workspace_bytes: What libraries and allocator held at most beyond the tensors of the anchors.
        rates: By precision; what the device or the framework lacks is absent.
        copy_bytes_per_s: Of copies inside the device's memory, read and written bytes together.
        launch_ms: Duration of one small operator, back to back.
        host_steps_per_s: Optimizer steps of a network so small that only the host works.
        anchors: Three networks of the zoo where all fitted.
        driver: Version of the driver; none where there is none.
        framework: For example torch-2.13.0.
        foreign_load: Others used the device meanwhile: read it with a wider interval.
        code_version: Of the measuring method.
        pairs: Of anchors, both directions of each; none where there was no time or others used the device.
        head_start_ms: Device time that a job gets after a wait beyond the share of one that never waits, as under a CPU
            quota; 0 where there is none, it was not seen, or the record is older than the figure.
        speed_wander_ratio: Standard deviation of ln(computing time of a step) between windows in which an anchor ran
            alone; 0 where there were too few of them, or the record is older than the figure.
        sharing: How the device was shared while pairs were measured; not stated by older records.
    """

    device: str
    measured_at_ms: int
    context_bytes: int
    workspace_bytes: int
    copy_bytes_per_s: float
    launch_ms: float
    host_steps_per_s: float
    rates: Mapping[str, PrecisionRates] = field(default_factory=dict, hash=False)
    anchors: tuple[Anchor, ...] = ()
    driver: str = "none"
    framework: str = ""
    foreign_load: bool = False
    code_version: int = CODE_VERSION
    pairs: tuple[AnchorPair, ...] = ()
    head_start_ms: float = 0.0
    speed_wander_ratio: float = 0.0
    sharing: DeviceSharing = DeviceSharing.UNSTATED

    def checked(self, now_ms: int) -> DeviceCalibration:
        """Return this record.

        Args:
            now_ms: Milliseconds since 1970, to find dates in the future.

        Raises:
            CalibrationError: A figure is no finite number or outside of what any device can be.
        """
        _check_text("device", self.device, is_needed=True)
        _check_text("driver", self.driver, is_needed=True)
        _check_text("framework", self.framework)
        if not 0 < self.measured_at_ms <= now_ms + _CLOCK_AHEAD_MS:
            what = "in the future" if self.measured_at_ms > 0 else "not set"
            raise CalibrationError(
                f"calibration: measured_at_ms is {what} ({self.measured_at_ms})",
                remedy="set the clock of the node, then measure it with `cotenant calibrate`",
            )
        for name in ("context_bytes", "workspace_bytes"):
            _check_number(name, getattr(self, name), 0, _MEMORY_BYTES_MAX)
        _check_number("copy_bytes_per_s", self.copy_bytes_per_s, *_BYTES_PER_S)
        _check_number("launch_ms", self.launch_ms, *_LAUNCH_MS)
        _check_number("host_steps_per_s", self.host_steps_per_s, *_HOST_STEPS_PER_S)
        _check_number("head_start_ms", self.head_start_ms, *_HEAD_START_MS)
        _check_number("speed_wander_ratio", self.speed_wander_ratio, *_SPEED_WANDER)
        _check_number("code_version", self.code_version, 1, 1_000_000)
        self._check_rates()
        self._check_anchors()
        self._check_pairs()
        return self

    def _check_rates(self) -> None:
        for precision, rates in self.rates.items():
            _check_choice("rates", precision, PRECISIONS)
            _check_number(f"rates.{precision}.matmul_flops_per_s", rates.matmul_flops_per_s, *_FLOPS)
            _check_number(f"rates.{precision}.convolution_flops_per_s", rates.convolution_flops_per_s, *_FLOPS)

    def _check_anchors(self) -> None:
        if len(self.anchors) > ANCHORS_MAX:
            raise CalibrationError(f"calibration: {len(self.anchors)} anchors, at most {ANCHORS_MAX}", remedy=_REMEDY)
        for anchor in self.anchors:
            if not _NETWORK.fullmatch(anchor.network) or not _SHA256.fullmatch(anchor.graph_sha256):
                raise CalibrationError("calibration: an anchor lacks its network or its graph's hash", remedy=_REMEDY)
            place = f"anchors.{anchor.network}"
            _check_number(f"{place}.batch_size", anchor.batch_size, 1, BATCH_SIZE_MAX)
            _check_number(f"{place}.step_ms", anchor.step_ms, *_STEP_MS)
            _check_number(f"{place}.step_spread_ratio", anchor.step_spread_ratio, 0, 100)
            _check_number(f"{place}.memory_peak_bytes", anchor.memory_peak_bytes, 0, _MEMORY_BYTES_MAX)
            _check_number(f"{place}.utilization_ratio", anchor.utilization_ratio, 0, 1)
            _check_choice(f"{place}.precision", anchor.precision, PRECISIONS)
            _check_choice(f"{place}.optimizer", anchor.optimizer, OPTIMIZERS)

    def _check_pairs(self) -> None:
        if len(self.pairs) > PAIRS_MAX:
            raise CalibrationError(f"calibration: {len(self.pairs)} pairs, at most {PAIRS_MAX}", remedy=_REMEDY)
        networks = {anchor.network for anchor in self.anchors}
        if any({pair.victim, pair.other} - networks for pair in self.pairs):
            raise CalibrationError("calibration: a pair is not of two of its anchors", remedy=_REMEDY)
        if any(pair.victim == pair.other for pair in self.pairs):
            raise CalibrationError("calibration: a pair is of one anchor", remedy=_REMEDY)
        if len({pair.sides for pair in self.pairs}) < len(self.pairs):
            raise CalibrationError("calibration: a pair is stated twice", remedy=_REMEDY)
        for pair in self.pairs:
            _check_number(f"pairs.{pair.victim}.slowdown_ratio", pair.slowdown_ratio, *_SLOWDOWN)
            for network, wait_ratio in pair.sides:
                _check_number(f"pairs.{network}.input_wait_ratio", wait_ratio, 0, _WAIT_MAX)

    def is_stale(self, *, device: str, driver: str, framework: str = "") -> bool:
        """Whether another device, driver or measuring method makes this record worthless; an empty text is unknown."""
        same = self.device == device and (not driver or self.driver == driver)
        return not (same and (not framework or self.framework == framework) and self.code_version == CODE_VERSION)


def write_calibration(calibration: DeviceCalibration) -> str:
    """Return the record as JSON, ending in a newline; equal records give equal text."""
    return json.dumps({"format": FORMAT, **stored_calibration(calibration)}, indent=2, sort_keys=True) + "\n"


def stored_calibration(calibration: DeviceCalibration) -> dict[str, object]:
    """Return the record as plain data."""
    plain = asdict(calibration)
    parts = {"anchors": list(plain["anchors"]), "rates": dict(plain["rates"]), "pairs": list(plain["pairs"])}
    return {**plain, **parts, "sharing": calibration.sharing.label}


def read_calibration_file(path: Path, now_ms: int) -> DeviceCalibration:
    """Return the record in a file.

    Raises:
        CalibrationError: There is no such file, or it holds no calibration that can be.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CalibrationError(f"cannot read {path}: {error.strerror or error}", remedy=_REMEDY) from error
    if len(content) > FILE_BYTES_MAX:
        raise CalibrationError(f"{path} is larger than any calibration", remedy=_REMEDY)
    try:
        return read_calibration(content.decode(), now_ms)
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path} is no calibration: not text", remedy=_REMEDY) from error
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error.message}", remedy=error.remedy) from error


def read_calibration(text: str, now_ms: int) -> DeviceCalibration:
    """Return the record that `write_calibration` wrote; names of later versions are passed over.

    Raises:
        CalibrationError: It is no calibration, of another format, or states what cannot be.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CalibrationError("no calibration: no JSON", remedy=_REMEDY) from error
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise CalibrationError(f"no calibration of the format {FORMAT}", remedy=_REMEDY)
    return read_stored_calibration(value).checked(now_ms)


def read_stored_calibration(value: Mapping[str, object]) -> DeviceCalibration:
    """Return the record that was kept as plain data; `checked` refuses impossible figures.

    Raises:
        CalibrationError: A field is absent or not of its type.
    """
    rates, anchors, pairs = value.get("rates", {}), value.get("anchors", ()), value.get("pairs", ())
    if not isinstance(rates, Mapping) or not isinstance(anchors, list | tuple) or not isinstance(pairs, list | tuple):
        raise CalibrationError(_NOT_OF_THEIR_TYPE, remedy=_REMEDY)
    return DeviceCalibration(
        device=_text(value, "device"),
        measured_at_ms=_integer(value, "measured_at_ms"),
        context_bytes=_integer(value, "context_bytes"),
        workspace_bytes=_integer(value, "workspace_bytes"),
        copy_bytes_per_s=_number(value, "copy_bytes_per_s"),
        launch_ms=_number(value, "launch_ms"),
        host_steps_per_s=_number(value, "host_steps_per_s"),
        rates={str(precision): _rates(_record(stated)) for precision, stated in rates.items()},
        anchors=tuple(_anchor(_record(stated)) for stated in anchors),
        driver=_text(value, "driver", "none"),
        framework=_text(value, "framework", ""),
        foreign_load=value.get("foreign_load") is True,
        code_version=_integer(value, "code_version", 1),
        pairs=tuple(_pair(_record(stated)) for stated in pairs),
        head_start_ms=_number(value, "head_start_ms", 0.0),
        speed_wander_ratio=_number(value, "speed_wander_ratio", 0.0),
        sharing=read_sharing(value.get("sharing")),
    )


def _rates(value: Mapping[str, object]) -> PrecisionRates:
    return PrecisionRates(
        matmul_flops_per_s=_number(value, "matmul_flops_per_s"),
        convolution_flops_per_s=_number(value, "convolution_flops_per_s"),
    )


def _anchor(value: Mapping[str, object]) -> Anchor:
    return Anchor(
        network=_text(value, "network"),
        graph_sha256=_text(value, "graph_sha256"),
        batch_size=_integer(value, "batch_size"),
        step_ms=_number(value, "step_ms"),
        memory_peak_bytes=_integer(value, "memory_peak_bytes"),
        step_spread_ratio=_number(value, "step_spread_ratio", 0.0),
        utilization_ratio=_number(value, "utilization_ratio", 1.0),
        precision=_text(value, "precision", "fp32"),
        optimizer=_text(value, "optimizer", "sgd"),
    )


def _pair(value: Mapping[str, object]) -> AnchorPair:
    return AnchorPair(
        victim=_text(value, "victim"),
        other=_text(value, "other"),
        slowdown_ratio=_number(value, "slowdown_ratio"),
        input_wait_ratio=_number(value, "input_wait_ratio", 0.0),
        other_input_wait_ratio=_number(value, "other_input_wait_ratio", 0.0),
    )


def _record(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise CalibrationError(_NOT_OF_THEIR_TYPE, remedy=_REMEDY)
    return value


def _text(value: Mapping[str, object], name: str, default: str | None = None) -> str:
    found = value.get(name, default)
    if not isinstance(found, str):
        raise CalibrationError(f"calibration: {name} is no text", remedy=_REMEDY)
    return found


def _number(value: Mapping[str, object], name: str, default: float | None = None) -> float:
    found = value.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise CalibrationError(f"calibration: {name} is no number", remedy=_REMEDY)
    try:
        return float(found)
    except OverflowError as error:
        raise CalibrationError(f"calibration: {name} is larger than any device's", remedy=_REMEDY) from error


def _integer(value: Mapping[str, object], name: str, default: int | None = None) -> int:
    found = _number(value, name, default)
    if not math.isfinite(found) or found != int(found):
        raise CalibrationError(f"calibration: {name} is no whole number", remedy=_REMEDY)
    return int(found)


def _check_number(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise CalibrationError(f"calibration: {name} is {value:g}, not {least:g} to {most:g}", remedy=_REMEDY)


def _check_text(name: str, value: str, *, is_needed: bool = False) -> None:
    if len(value) > _TEXT_MAX or not value.isprintable() or (is_needed and not value.strip()):
        remedy = f"name it with at most {_TEXT_MAX} printable characters"
        raise CalibrationError(f"calibration: {name} is {value[:40]!r}", remedy=remedy)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise CalibrationError(f"calibration: {name} names {value[:40]!r}", remedy=f"use {', '.join(choices)}")
