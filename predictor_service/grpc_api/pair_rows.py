"""ListMeasuredPairs: the pair table in pages."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

from cotenant.v1 import prediction_pb2, resources_pb2
from predictor_service.grpc_api.pages import cut_page
from predictor_service.inference.observed_pairs import NOISE, Observation
from predictor_service.inference.pair_table import MeasuredPair
from predictor_service.inference.predictor import Predictor

_DEVIATIONS: Final = NormalDist().inv_cdf(0.95)


def list_measured_pairs(
    request: prediction_pb2.ListMeasuredPairsRequest, predictor: Predictor
) -> prediction_pb2.ListMeasuredPairsResponse:
    """Answers one request.

    Raises:
        InvalidRequestError: The page size is outside its range.
        UnknownDeviceError: There is no such device type.
    """
    page, token = cut_page(predictor.measured_pairs(request.device), _place, request.page_size, request.page_token)
    return prediction_pb2.ListMeasuredPairsResponse(pairs=[_message(row) for row in page], next_page_token=token)


def _place(row: MeasuredPair) -> str:
    return "\n".join((row.device, *row.pair, *filter(None, (row.sharing.label,))))


def _next_time(seen: Observation) -> tuple[float, float]:
    """Where nine of ten further windows are expected, of ln(1 + slowdown); doubtful ones make it no narrower."""
    if not seen.is_doubtful:
        reach = _DEVIATIONS * math.sqrt(seen.variance + seen.mean_variance)
        return seen.mean - reach, seen.mean + reach
    reach = _DEVIATIONS * math.sqrt(2.0 * max(seen.variance, NOISE**2))
    lower, upper = seen.mean - reach, seen.mean + reach
    if seen.sound is None:
        return lower, upper
    sound = _next_time(seen.sound)
    return min(lower, sound[0]), max(upper, sound[1])


def _message(row: MeasuredPair) -> prediction_pb2.MeasuredPair:
    seen, victim, other = row.seen, row.victim, row.other
    lower, upper = _next_time(seen)
    return prediction_pb2.MeasuredPair(
        device=row.device,
        victim_job_key=row.pair[0],
        other_job_key=row.pair[1],
        slowdown_ratio=math.expm1(seen.mean),
        lower=math.expm1(lower),
        upper=math.expm1(upper),
        times_measured=seen.times,
        newest_at_ms=seen.newest_ms,
        victim_graph_sha256=victim.graph_sha256 if victim else "",
        victim_global_batch_size=victim.settings.global_batch_size if victim else 0,
        other_graph_sha256=other.graph_sha256 if other else "",
        other_global_batch_size=other.settings.global_batch_size if other else 0,
        sharing=resources_pb2.DeviceSharing.ValueType(row.sharing),
    )
