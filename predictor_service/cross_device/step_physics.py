"""Time of a step from peaks and a few fitted coefficients: what the device computes, what the host launches.

    device = passes x (convolutions + products + depthwise + traffic + handling + gaps between kernels) + optimizer
    host   = operators x the host's time for one
    step   = (device^P + host^P)^(1/P) + what every step costs + what the script does beside it

Each term is what the device's peak predicts divided by an efficiency: by kind of work and number format, shrunk towards
one of all generations, and limited to what any kernel was seen to reach. Every coefficient is positive and enters as
its logarithm, and the time never falls as the batch grows. What is moved takes time twice: at the bandwidth of the
memory, and handled by multiprocessors at their clock, which grew faster than bandwidths did. Derivatives are exact, so
that fitting needs no library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from predictor_service.cross_device.step_work import StepWork
from predictor_service.features.devices import DeviceType, Generation
from predictor_service.features.graphs.affine import FloatArray

_POWER: Final = 2.5
"""Between a sum (1) and the larger one (infinity): device and host overlap most of a step."""
_WEIGHT_BYTES: Final = 4
# Half precisions mean mixed training: activations are half as wide, what stays in 32 bits is not.
_TRAFFIC_RATIO: Final = {"fp16": 0.55, "bf16": 0.55, "fp64": 2.0}
_FULL_RATE_RATIO: Final = 0.3
_TENSOR_RATIO: Final = 2.1
_TRAINING_PASSES: Final = 3.0
_GENERATION_DEVIATION: Final = 0.2
_KEPLER_PRODUCT_RATIO: Final = 0.74
"""Share of its peak that a Kepler card reaches in matrix products by its vendor's own figures (K20X 2.90 of 3.95, K20
2.61 of 3.52 TFLOP/s): its schedulers issue for 192 lanes only where two instructions do not wait for each other."""
PRODUCT_EFFICIENCY_MAX: Final = 0.92
"""Share of a peak that no matrix product exceeds: of 4,134 measured steps none did its products faster than at .912.
Coefficients that are learned from steps that products hardly fill must not say otherwise of those that they fill."""
CONVOLUTION_EFFICIENCY_MAX: Final = 2.25
"""Winograd's F(2x2, 3x3), which libraries choose, multiplies so many times less than is counted (Lavin, Gray,
arXiv:1509.09308)."""
_GAMING: Final = ("NVIDIA GeForce", "NVIDIA TITAN")
"""Their published clock is what the worst board holds: an RTX 4090 of 2,520 MHz ran at 2,810 to 2,850, an RTX 3090 Ti
of 1,860 at 2,000 to 2,050 (tweaktown.com/news/88568). Cards of servers hold theirs or less."""
_SLOW_HALF_RATIO: Final = 1 / 64
"""Share of their 32-bit rate at which Pascal's chips but the P100's compute in 16 bits: 2 of 128 results per clock and
multiprocessor (NVIDIA's table, forums.developer.nvidia.com/t/108706). Convolutions convert to 32 bits instead."""
FORMATS: Final = ("fp32", "tf32", "tensor", "half", "fp64", "fp64_full")
GENERATIONS: Final = tuple(each.value for each in Generation if each not in {Generation.PROCESSOR, Generation.UNKNOWN})
_LANES: Final = {Generation.KEPLER: 192, Generation.VOLTA: 64, Generation.TURING: 64, Generation.GCN: 64}
"""32-bit lanes of a multiprocessor where they are not `_USUAL_LANES`."""
_USUAL_LANES: Final = 128
_HALVED: Final = frozenset({Generation.PASCAL, Generation.AMPERE})
"""Generations whose chips for servers with double precision (P100; A30, A100) have half as many 32-bit lanes."""
_FEWER_LANES: Final = 64


class Prior(NamedTuple):
    """What a coefficient is before any row: a typical value, and how far its logarithm may be from it."""

    typical: float
    deviation: float


def _list_priors() -> dict[str, Prior]:
    priors = {
        "host_train_ms": Prior(0.15, 0.7),
        "host_infer_ms": Prior(0.03, 0.7),
        "gap_ms": Prior(0.005, 0.5),
        "fixed_train_ms": Prior(0.3, 0.5),
        "fixed_infer_ms": Prior(0.1, 0.5),
        "bandwidth_train": Prior(0.65, 0.3),
        "bandwidth_infer": Prior(0.65, 0.3),
        "depthwise": Prior(0.15, 0.5),
        "optimizer": Prior(0.6, 0.4),
        "multiprocessor_bytes": Prior(20.0, 0.7),
    }
    for name in FORMATS:
        typical = {"tensor": 0.45, "tf32": 0.5, "fp64_full": 0.3}.get(name, 0.8)
        priors[f"convolution_{name}"] = Prior(typical, 0.3)
        priors[f"product_{name}"] = Prior(typical, 0.3)
    for name in GENERATIONS:
        priors[f"compute_{name}"] = Prior(1.0, _GENERATION_DEVIATION)
        priors[f"traffic_{name}"] = Prior(1.0, _GENERATION_DEVIATION)
    priors["boost_gaming"] = Prior(1.1, 0.05)
    priors["compute_kepler"] = Prior(_KEPLER_PRODUCT_RATIO, _GENERATION_DEVIATION)
    return priors


SUCCESSORS: Final = (
    (Generation.VOLTA, Generation.TURING),
    (Generation.TURING, Generation.AMPERE),
    (Generation.AMPERE, Generation.ADA),
    (Generation.AMPERE, Generation.HOPPER),
    (Generation.ADA, Generation.BLACKWELL),
    (Generation.HOPPER, Generation.BLACKWELL),
)
"""Generations with matrix units, each with those that its multiprocessors were developed into: what they reach of their
peaks is alike, so that one that taught nothing is expected to compute as those before and after it. Of bandwidth that
does not hold: caches grew by leaps."""
SUCCESSOR_DEVIATION: Final = 0.15
"""How far the logarithms of what two of them reach may be apart."""
SCRIPT_MS: Final = Prior(1.0, 1.0)
"""What a script does in every step beside a bare loop: it reads its input, logs, waits for results. Of each measured
script it is fitted and thrown away: it says nothing of the device or of the network, and a job states its own wait."""
PRIORS: Final[Mapping[str, Prior]] = _list_priors()
"""By name: milliseconds of one operator or step, efficiencies, or bytes that a multiprocessor handles per clock."""
COEFFICIENTS: Final = tuple(PRIORS)
_PLACE: Final = {name: place for place, name in enumerate(COEFFICIENTS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKind:
    """All that the time of a step depends on apart from its work.

    Attributes:
        device: Its peaks.
        precision: As in JobSettings, or fp64.
        is_training: Or inference.
        framework: Its first word decides what 32 bits mean.
        optimizer_slots: Numbers that the optimizer keeps per parameter; -1 = gradients are made and nothing is updated.
    """

    device: DeviceType
    precision: str
    is_training: bool
    framework: str = "pytorch"
    optimizer_slots: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTerms:
    """Times at the peaks, and the coefficients that each is divided or multiplied by.

    Attributes:
        device_ms: Terms of the device, shape (terms, rows).
        device_places: Coefficients of each, by place in `COEFFICIENTS`, shape (terms, 3, rows); -1 = none.
        device_signs: +1 where a coefficient multiplies, -1 where it divides, shape (terms,).
        host_count: Operators that the host launches, shape (rows,).
        host_places: The coefficient of one of them, shape (rows,).
        fixed_places: The coefficient of what every step costs, shape (rows,).
    """

    device_ms: FloatArray
    device_places: np.ndarray[tuple[int, int, int], np.dtype[np.intp]]
    device_signs: FloatArray
    host_count: FloatArray
    host_places: np.ndarray[tuple[int], np.dtype[np.intp]]
    fixed_places: np.ndarray[tuple[int], np.dtype[np.intp]]


def number_format(device: DeviceType, precision: str) -> str:
    """Which arithmetic runs: the units that it uses decide how far a device stays below its peak.

    Args:
        device: Its peaks.
        precision: As it really runs, see `DeviceType.convolution_precision`.
    """
    single = device.peak("fp32")
    if precision == "fp64":
        return "fp64_full" if device.peak("fp64") > _FULL_RATE_RATIO * single else "fp64"
    if precision in {"fp16", "bf16"}:
        return "tensor" if device.peak(precision) > _TENSOR_RATIO * single or _has_tf32(device) else "half"
    return "tf32" if precision == "tf32" and _has_tf32(device) else "fp32"


def is_gaming_board(device: DeviceType) -> bool:
    """Whether a card runs above its published clock as long as it is cool: NVIDIA's consumer boards, not laptops'."""
    return device.name.startswith(_GAMING) and "Laptop" not in device.name


def _has_tf32(device: DeviceType) -> bool:
    return device.convolution_precision("fp32") == "tf32"


def clocks_per_ms(device: DeviceType) -> float:
    """Clock cycles of all multiprocessors together: two operations in each of their lanes in each cycle."""
    has_full_rate = number_format(device, "fp64") == "fp64_full"
    is_halved = has_full_rate and device.generation in _HALVED
    lanes = _FEWER_LANES if is_halved else _LANES.get(device.generation, _USUAL_LANES)
    return device.peak("fp32") / (2e3 * lanes)


def terms_of(work: StepWork, kinds: Sequence[StepKind]) -> StepTerms:
    """Prepares rows for `step_ms`.

    Args:
        work: Of the rows.
        kinds: One for each row, or a single one for all.
    """
    each = [_terms_of_kind(kind) for kind in kinds]
    rows = len(work)
    rates, places = (np.array(part) for part in zip(*((one.rates, one.places) for one in each), strict=True))
    host, fixed = np.array([one.host for one in each], dtype=np.intp).T
    rates = np.broadcast_to(rates, (rows, rates.shape[1]))
    places = np.broadcast_to(places, (rows, *places.shape[1:]))
    sizes = np.stack(
        [
            work.convolution_flops,
            work.product_flops,
            work.depthwise_flops,
            work.traffic_bytes,
            work.nodes + work.waiting_steps,
            work.parameters,
            work.traffic_bytes,
        ]
    )
    return StepTerms(
        device_ms=sizes * rates.T,
        device_places=places.transpose(1, 2, 0),
        device_signs=_SIGNS,
        host_count=work.nodes + work.waiting_steps,
        host_places=np.broadcast_to(host, (rows,)),
        fixed_places=np.broadcast_to(fixed, (rows,)),
    )


class _KindTerms(NamedTuple):
    """Milliseconds per operation, byte or operator at the peaks, and the places of coefficients, those of host last."""

    rates: tuple[float, ...]
    places: tuple[tuple[int, int, int], ...]
    host: tuple[int, int]


_SIGNS: Final[FloatArray] = np.array([-1.0, -1.0, -1.0, -1.0, 1.0, -1.0, -1.0])
_EFFICIENCIES_MAX: Final[FloatArray] = np.array(
    [CONVOLUTION_EFFICIENCY_MAX, PRODUCT_EFFICIENCY_MAX, CONVOLUTION_EFFICIENCY_MAX, np.inf, np.inf, np.inf, np.inf]
)
_PRODUCTS: Final = 1
"""Place of their term."""


def _terms_of_kind(kind: StepKind) -> _KindTerms:
    device = kind.device
    mode, passes = ("train", _TRAINING_PASSES) if kind.is_training else ("infer", 1.0)
    convolution = device.convolution_precision(kind.precision)
    product = device.product_precision(kind.precision, kind.framework)
    byte_ms, width = 1e3 / device.memory_bytes_per_s, _TRAFFIC_RATIO.get(kind.precision, 1.0)
    lanes_ms, is_native_half = _depthwise_rate(device, kind.precision)
    # Weight, gradient and every slot are read, and all but the gradient written; without an update one pass is left.
    optimizer_bytes = _WEIGHT_BYTES * (3 + 2 * kind.optimizer_slots) if kind.is_training else 0.0
    rates = (
        1e3 * passes / device.peak(convolution),
        1e3 * passes / device.peak(product),
        passes * lanes_ms,
        byte_ms * passes * width,
        passes,
        byte_ms * optimizer_bytes,
        passes * width / clocks_per_ms(device),
    )
    known = device.generation.value in GENERATIONS
    compute = _PLACE[f"compute_{device.generation.value}"] if known else -1
    traffic = _PLACE[f"traffic_{device.generation.value}"] if known else -1
    boost = _PLACE["boost_gaming"] if is_gaming_board(device) else -1
    places = (
        (_PLACE[f"convolution_{number_format(device, convolution)}"], compute, boost),
        (_PLACE[f"product_{number_format(device, product)}"], compute, boost),
        (-1, -1, -1) if is_native_half else (_PLACE["depthwise"], compute, boost),
        (_PLACE[f"bandwidth_{mode}"], traffic, -1),
        (_PLACE["gap_ms"], -1, -1),
        (_PLACE["optimizer"], -1, -1),
        (_PLACE["multiprocessor_bytes"], boost, -1),
    )
    return _KindTerms(rates, places, (_PLACE[f"host_{mode}_ms"], _PLACE[f"fixed_{mode}_ms"]))


def _depthwise_rate(device: DeviceType, precision: str) -> tuple[float, bool]:
    """Milliseconds of one operation of a depthwise convolution at the peak, and whether it is limited by nothing else.

    Its kernels use no matrix units; they compute in 32-bit lanes, or in those of 16 bits where a chip has any.
    """
    lanes = device.peak("fp64" if precision == "fp64" else "fp32")
    has_slow_half = device.generation is Generation.PASCAL and device.peak("fp16") <= device.peak("fp32")
    is_native_half = precision == "fp16" and has_slow_half
    return 1e3 / (lanes * (_SLOW_HALF_RATIO if is_native_half else 1.0)), is_native_half


class StepParts(NamedTuple):
    """A step taken apart; all in milliseconds, shape (rows,), but for the terms.

    Attributes:
        total_ms: The time of the step.
        joined_ms: Of device and host, which overlap.
        device_ms: Of the device.
        host_ms: Of the host.
        terms_ms: Of the device by term, shape (terms, rows).
    """

    total_ms: FloatArray
    joined_ms: FloatArray
    device_ms: FloatArray
    host_ms: FloatArray
    terms_ms: FloatArray


def step_parts(
    terms: StepTerms, logs: FloatArray, host_logs: FloatArray | float = 0.0, script_ms: FloatArray | float = 0.0
) -> StepParts:
    """Times steps.

    Args:
        terms: The rows.
        logs: Logarithms of the coefficients, in the order of `COEFFICIENTS`.
        host_logs: What the host's time deviates by, as a logarithm; one for all rows or for each.
        script_ms: What scripts do beside the bare loop; the same.
    """
    padded = np.append(logs, 0.0)
    exponents = padded[terms.device_places].sum(axis=1) * terms.device_signs[:, None]
    terms_ms = np.maximum(terms.device_ms * np.exp(exponents), _least_ms(terms))
    device_ms = np.maximum(terms_ms.sum(axis=0), 1e-9)
    host_ms = np.maximum(terms.host_count * np.exp(logs[terms.host_places] + host_logs), 1e-9)
    longer, shorter = np.maximum(device_ms, host_ms), np.minimum(device_ms, host_ms)
    joined_ms = longer * (1 + (shorter / longer) ** _POWER) ** (1 / _POWER)
    fixed_ms = np.exp(logs[terms.fixed_places]) + script_ms
    return StepParts(joined_ms + fixed_ms, joined_ms, device_ms, host_ms, terms_ms)


def _least_ms(terms: StepTerms) -> FloatArray:
    """What each term of the device takes at least, shape (terms, rows)."""
    return np.asarray(terms.device_ms / _EFFICIENCIES_MAX[:, None], dtype=np.float64)


def products_at_peak_ms(terms: StepTerms) -> FloatArray:
    """Time of a step's matrix products at the peak, shape (rows,): no step is shorter."""
    return np.asarray(terms.device_ms[_PRODUCTS], dtype=np.float64)


def log_derivatives(terms: StepTerms, logs: FloatArray, parts: StepParts) -> tuple[FloatArray, FloatArray]:
    """Derivatives of the logarithm of the time.

    Returns:
        By the coefficients, shape (rows, coefficients), and by the deviation of the host, shape (rows,).
    """
    rows = np.arange(len(parts.total_ms))
    fixed_ms = np.exp(logs[terms.fixed_places])
    by_device = (parts.device_ms / parts.joined_ms) ** (_POWER - 1) / parts.total_ms
    by_host = (parts.host_ms / parts.joined_ms) ** (_POWER - 1) * parts.host_ms / parts.total_ms
    found = np.zeros((len(rows), len(COEFFICIENTS) + 1))
    learned_ms = np.where(parts.terms_ms > _least_ms(terms), parts.terms_ms, 0.0)
    for term_ms, places, sign in zip(learned_ms, terms.device_places, terms.device_signs, strict=True):
        for place in places:
            np.add.at(found, (rows, place), sign * by_device * term_ms)
    np.add.at(found, (rows, terms.host_places), by_host)
    np.add.at(found, (rows, terms.fixed_places), fixed_ms / parts.total_ms)
    return found[:, :-1], by_host
