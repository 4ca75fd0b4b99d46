"""Estimators of jobs on one device at hand, however they state what they wait for their input."""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.job_settings import JobSettings
from predictor_service.cross_device.step_model import CONVOLUTIONAL, kind_of_network
from predictor_service.cross_device.step_work import work_of_table
from predictor_service.features.device_scale import DeviceScale
from predictor_service.features.devices import DeviceType
from predictor_service.features.head_start import NO_HEAD_START
from predictor_service.inference.calibrated_estimator import CalibratedEstimator
from predictor_service.inference.estimator_cache import EstimatorCache
from predictor_service.inference.job_estimator import JobEstimator
from predictor_service.inference.measured_graph import MeasuredGraph
from predictor_service.inference.timed_wait import TimedWaitEstimator
from predictor_service.registry.served_version import ServedVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEstimators:
    """What answers a question about jobs on one device.

    Attributes:
        of_type: Estimators of its type.
        device: Its type.
        version: Whose models answer; None = nothing was ever trained.
        confidence: Coverage of the intervals.
        scale: How the device differs from its type, in every precision; None = it was not calibrated.
        of_device: See `CalibratedEstimator`.
    """

    of_type: EstimatorCache
    device: DeviceType
    version: ServedVersion | None
    confidence: float
    scale: DeviceScale | None
    of_device: bool = False

    def find(self, graph: MeasuredGraph, settings: JobSettings) -> JobEstimator:
        """Return the estimator of a job.

        Args:
            graph: Of the job.
            settings: Of the job; models know the wait as a share of a step.
        """
        scale = self.scale_of(graph, settings)

        def on_type(share: float) -> JobEstimator:
            shared = settings.with_wait_share(share)
            return self.of_type.find(graph, shared, self.device, self.version, self.confidence)

        def at_share(share: float) -> JobEstimator:
            found = on_type(share)
            if scale is None:
                return found
            return CalibratedEstimator(found, scale, share, of_device=self.of_device)

        if not settings.input_wait_ms:
            return at_share(settings.input_wait_ratio)
        head_start = NO_HEAD_START if scale is None else scale.head_start
        return TimedWaitEstimator(settings, on_type, at_share, head_start)

    def scale_of(self, graph: MeasuredGraph, settings: JobSettings) -> DeviceScale | None:
        """Return the scale in the precision of a job; None = the device was not calibrated.

        Args:
            graph: Of the job.
            settings: Of the job.
        """
        if self.scale is None:
            return None
        return self.scale.at("fp32" if self._is_fp32(graph, settings) else settings.precision)

    def _is_fp32(self, graph: MeasuredGraph, settings: JobSettings) -> bool:
        """Whether a job in TF32 does what it would do in fp32: convolutions use TF32 in either, products do not."""
        if settings.precision != "tf32":
            return False
        if not self.device.has_units_for("tf32"):
            return True
        work = work_of_table(graph.at(settings.global_batch_size), graph.description.arrays)
        return kind_of_network(work) == CONVOLUTIONAL
