"""What the predictor of the benchmark `live_equals_simulated` says: the profile, to live and simulated schedulers."""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from benchmarks.live_equals_simulated_profile import BATCH, Profile
from cotenant.v1 import prediction_pb2, resources_pb2
from scheduler_service.adapters.predictor.prediction_messages import (
    job_prediction,
    job_question,
    pair_predictions,
    pairs_question,
)
from scheduler_service.core.commands import RequestPairPredictions, RequestPrediction
from scheduler_service.core.records import JobPrediction, PairPrediction
from tests.support.fake_predictor import MIB, FakePredictor, estimate


class ProfilePredictor(FakePredictor):
    """Answers with the profile, to a live scheduler as to a simulated one."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self._profile = profile
        self._kinds = {kind.graph_sha256: kind for kind in profile.kinds}

    def PredictJob(  # noqa: N802
        self, request: prediction_pb2.PredictJobRequest, context: grpc.ServicerContext | None
    ) -> prediction_pb2.PredictJobResponse:
        """Say what was measured on one device; a half of the batch takes what two devices took, twice."""
        kind = self._kinds[request.graph_sha256]
        whole_ms = self._profile.one_device_step_ms(kind)
        halved_ms = 2 * self._profile.step_ms.get((kind.name, 2), whole_ms / 2)
        memory = estimate(kind.memory_mib * MIB)
        return prediction_pb2.PredictJobResponse(
            prediction_id=kind.name,
            model_version="profile",
            utilization_ratio=estimate(
                kind.cpu_ms / max(kind.counts) / self._profile.step_ms[kind.name, max(kind.counts)]
            ),
            memory_bytes=memory,
            step_ms=estimate(whole_ms),
            fits=True,
            micro_batches=[
                prediction_pb2.MicroBatchEstimate(
                    micro_batch_size=size,
                    accumulation_steps=-(-BATCH // size),
                    memory_bytes=memory,
                    step_ms=estimate(whole_ms if size >= BATCH else halved_ms),
                )
                for size in request.micro_batch_sizes
            ],
        )

    def PredictPairs(  # noqa: N802
        self, request: prediction_pb2.PredictPairsRequest, context: grpc.ServicerContext | None
    ) -> prediction_pb2.PredictPairsResponse:
        """Say what was measured of every two, whatever their micro-batches."""
        names = [self._kinds[job.graph_sha256].name for job in request.jobs]
        ratios = [self._profile.slowdown_ratios[victim, other] for victim in names for other in names]
        return prediction_pb2.PredictPairsResponse(
            job_ids=[job.job_id for job in request.jobs],
            slowdown_ratio=ratios,
            lower=ratios,
            upper=ratios,
            level=[resources_pb2.ESTIMATE_LEVEL_GRAPH] * len(ratios),
            in_domain=[True] * len(ratios),
            model_version="profile",
        )


class SimulatedPredictor:
    """The same answers, read as the scheduler reads them."""

    is_per_job = False

    def __init__(self, live: ProfilePredictor) -> None:
        self._live = live

    def job(self, question: RequestPrediction) -> JobPrediction | None:
        """Return what is predicted of a kind."""
        return job_prediction(question, self._live.PredictJob(job_question(question), None))

    def pairs(self, question: RequestPairPredictions) -> Sequence[PairPrediction]:
        """Return the slowdowns."""
        answer = self._live.PredictPairs(pairs_question(question), None)
        return list(pair_predictions(question.device, answer, question.members))
