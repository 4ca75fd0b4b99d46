"""Applies a calibration to a question: checks that it is about the same device type, and makes its scale.

What models say of the anchors is asked of the models that answer the question, whatever they are: a retrained version
that has learned this machine's speed is not corrected twice.
"""

from __future__ import annotations

import dataclasses

from cotenant.device_calibration import Anchor, DeviceCalibration
from cotenant.device_sharing import DeviceSharing
from cotenant.job_settings import JobSettings
from predictor_service.errors import PredictorError, UnknownDeviceError, invalid_field
from predictor_service.features.anchor_networks import find_anchor_graph
from predictor_service.features.device_names import resolve_device
from predictor_service.features.device_scale import AnchorFigures, DeviceScale, scale_of
from predictor_service.features.devices import DeviceType
from predictor_service.features.head_start import HeadStart
from predictor_service.inference.estimator_cache import EstimatorCache
from predictor_service.inference.graph_library import GraphLibrary
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.observed_pairs import Observation, Pair, log_slowdown
from predictor_service.inference.records import DEFAULT_CONFIDENCE, Notice, PairJob
from predictor_service.registry.public_version import TEACHING_SETS
from predictor_service.registry.served_version import ServedVersion


class CalibratedDevices:
    """Makes scales; safe for many threads.

    Args:
        graphs: Knows graphs by content; anchors' graphs come with this package.
        estimators: Keeps the anchors' estimators as it does others'.
    """

    def __init__(self, graphs: GraphLibrary, estimators: EstimatorCache) -> None:
        self._graphs = graphs
        self._estimators = estimators

    def scale(
        self, calibration: DeviceCalibration | None, device: DeviceType, version: ServedVersion | None
    ) -> DeviceScale | None:
        """Return how the calibrated device differs from what the models say of its type; None = nothing is known of it.

        Args:
            calibration: Checked; None = the device was not calibrated.
            device: The device type asked about.
            version: Whose models answer.

        Raises:
            InvalidRequestError: The calibration is of another device type.
        """
        if calibration is None:
            return None
        _check_device(calibration, device)
        return scale_of(calibration, lambda reference: self._figures(reference, device, version))

    def _figures(self, reference: Anchor, device: DeviceType, version: ServedVersion | None) -> AnchorFigures | None:
        graph = self._graph(reference.graph_sha256)
        if graph is None:
            return None
        estimator = self._estimators.find(graph, _settings(reference), device, version, DEFAULT_CONFIDENCE)
        step, memory = estimator.step(reference.batch_size), estimator.memory(reference.batch_size)
        return AnchorFigures(step_ms=step.value, memory_bytes=memory.value)

    def _graph(self, graph_sha256: str) -> MeasuredGraph | None:
        if self._graphs.remembers(graph_sha256, {}):
            return self._graphs.find(graph_sha256, {})
        content = find_anchor_graph(graph_sha256)
        try:
            return self._graphs.describe(content, {}) if content else self._graphs.find(graph_sha256, {})
        except PredictorError:
            return None


def reference_jobs(calibration: DeviceCalibration | None, sharing: DeviceSharing) -> list[PairJob]:
    """Return the anchors that were measured in pairs as jobs of which all is known that they do alone.

    Args:
        calibration: None = the device was not calibrated.
        sharing: How jobs would share the device; pairs that were measured another way say nothing.
    """
    if calibration is None or not _counts(calibration, sharing):
        return []
    # Of a network that ran in two precisions the first one is of the pairs: anchors in others are measured after them.
    references = {reference.network: reference for reference in reversed(calibration.anchors)}
    sides = {side for pair in calibration.pairs for side in pair.sides}
    head_start_ms = calibration.head_start_ms
    return [_reference_job(references[network], wait_ratio, head_start_ms) for network, wait_ratio in sorted(sides)]


def reference_pairs(calibration: DeviceCalibration | None, sharing: DeviceSharing) -> dict[Pair, Observation]:
    """Return what the calibration measured of pairs, each as one window, by the keys of `reference_jobs`."""
    if calibration is None or not _counts(calibration, sharing):
        return {}
    found = {}
    for pair in calibration.pairs:
        victim, other = (_reference_key(*side) for side in pair.sides)
        found[victim, other] = Observation(count=1.0, mean=log_slowdown(pair.slowdown_ratio))
    return found


def _counts(calibration: DeviceCalibration, sharing: DeviceSharing) -> bool:
    """Whether its pairs do: where others used the device it is not the anchors that slowed each other down."""
    is_other = bool(sharing and calibration.sharing) and sharing is not calibration.sharing
    return not calibration.foreign_load and not is_other


def _reference_job(reference: Anchor, wait_ratio: float, head_start_ms: float) -> PairJob:
    key = _reference_key(reference.network, wait_ratio)
    head_start = HeadStart(device_ms=head_start_ms, share=reference.utilization_ratio)
    wait_ms = reference.step_ms * wait_ratio / (1.0 - wait_ratio)
    step_ms = wait_ms + head_start.computing_ms(reference.step_ms, wait_ms)
    return PairJob(
        job_id=key,
        settings=dataclasses.replace(_settings(reference), input_wait_ratio=wait_ms / step_ms),
        known_step_ms=step_ms,
        known_utilization_ratio=reference.utilization_ratio * min(1.0, reference.step_ms / step_ms),
        known_memory_bytes=float(max(reference.memory_peak_bytes, 1)),
        measured_key=key,
    )


def _reference_key(network: str, wait_ratio: float) -> str:
    """Not the key of any job, an equal one included: what callers measured of their own jobs is kept apart."""
    return f"anchor {network} waiting {wait_ratio:g}"


def _settings(reference: Anchor) -> JobSettings:
    return JobSettings(
        global_batch_size=reference.batch_size, precision=reference.precision, optimizer=reference.optimizer
    )


def calibration_notices(calibration: DeviceCalibration | None, scale: DeviceScale | None) -> tuple[Notice, ...]:
    """Return what an answer says of the calibration that it used.

    Args:
        calibration: None = the device was not calibrated.
        scale: Of the precision of the job; None = the calibration says nothing of the device.
    """
    if calibration is None:
        return ()
    if scale is None:
        return (Notice(code="CALIBRATION_UNUSED", message="the calibration has no anchor network that is known here"),)
    load = ""
    if calibration.foreign_load:
        load = "; others used the device meanwhile, so it may be faster: ranges are wider, pairs are answered without"
    missing = "" if scale.is_precision_measured else f", none in {scale.precision}: ranges of such steps are wider"
    message = f"steps take {scale.step_ratio:.2f} times what is known of the type, by {scale.anchors} networks measured"
    return (Notice(code="CALIBRATED", message=f"{message} on the device at hand{missing}{load}"),)


def place_notices(scale: DeviceScale | None, device: DeviceType, version: ServedVersion | None) -> tuple[Notice, ...]:
    """Return on which machines the ranges of a device type were checked; nothing where the one at hand was calibrated.

    Of models by others' rows each estimate says itself that its range was not checked here.

    Args:
        scale: How the device at hand differs from its type; None = nothing is known of it.
        device: The device type asked about.
        version: Whose models answer.
    """
    if version is None or scale is not None:
        return ()
    if all(model.record.is_public for model in version.devices.get(device.name, {}).values()):
        return ()
    places = ", ".join(sorted(name for name in version.manifest.datasets if name not in TEACHING_SETS))
    message = (
        f"checked only on the machines where these data sets were measured: {places}; how often they hold on yours"
    )
    return (Notice(code="CHECKED_ELSEWHERE", message=f"{message} is not known before `cotenant calibrate` there"),)


def _check_device(calibration: DeviceCalibration, device: DeviceType) -> None:
    try:
        name = resolve_device(calibration.device).device.name
    except UnknownDeviceError:
        name = calibration.device
    if name != device.name:
        raise invalid_field(
            "calibration",
            f"it is of a {calibration.device!r}, the question is about a {device.name!r}",
            "name the device that was calibrated, or leave the calibration out",
        )
