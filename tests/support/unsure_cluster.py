"""A simulated cluster in which nothing reliable is predicted, so that jobs share on trial, among drawn faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler_service.core import commands, events
from scheduler_service.core.records import JobRequest, Share
from tests.support.scheduling import GIB, prediction
from tests.support.simulated_cluster import Machine, SimulatedCluster


class UnsureCluster(SimulatedCluster):
    """Every prediction is out of domain, no pair is answered, and some pairs slow each other down too much."""

    def _request(self, index: int) -> JobRequest:
        return replace(
            super()._request(index),
            key=f"key-{self.generator.randrange(3)}",
            gpus=1,
            allowed_gpus=(),
            steps_total=self.generator.randrange(20, 60),
            share=Share.SAFE,
            max_slowdown_ratio=0.5,
        )

    def _predict(self, question: commands.RequestPrediction) -> None:
        answer = prediction(question.key, in_domain=False, utilization_ratio=1.0)
        self.tell(events.PredictionArrived, prediction=answer)

    def _predict_pairs(self, question: commands.RequestPairPredictions) -> None:
        self.tell(
            events.PairPredictionsFailed,
            device=question.device,
            sharing=question.sharing,
            keys=question.new_keys,
            code="UNAVAILABLE",
        )

    def report(self, machine: Machine, kind: type[events.Event], **values: Any) -> None:
        """Report what a window says: slower next to another job, for some keys more than they accept."""
        if kind is events.JobProgressed:
            record = self.engine.state.jobs.get(values["job_id"])
            is_shared = (
                record is not None and record.holds_gpus and bool(self.engine.state.occupancy.neighbours(record))
            )
            is_sensitive = record is not None and record.request.key == "key-2"
            slower = (2 if is_sensitive else 1.2) if is_shared else 1
            values |= {"window_ms": int(values["window_ms"] * slower), "memory_peak_bytes": GIB}
            values["utilization_ratio"] = 0.4
        super().report(machine, kind, **values)

    @property
    def trials(self) -> int:
        """Trials that have begun."""
        return sum(job.counts.trials for job in self.engine.state.jobs.values())

    @property
    def broken_trials(self) -> int:
        """Trials that broke, counted at each of the two jobs."""
        return sum(job.counts.broken_trials for job in self.engine.state.jobs.values())
