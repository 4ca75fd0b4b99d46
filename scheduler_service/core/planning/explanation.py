"""Why a job waits, found on a copy of the instant: a reader may take time while the cluster goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler_service.core.cluster_view.cluster_index import FreshIndex
from scheduler_service.core.cluster_view.progress_extrapolation import ExtrapolatedJobs
from scheduler_service.core.cluster_view.view import PendingJob, Policy, RunningJob, SchedulingView
from scheduler_service.core.decisions import Decision, Hold, HoldMany, HoldRest
from scheduler_service.core.errors import POLICY_FAULTS
from scheduler_service.core.planning.plan_check import check_plan
from scheduler_service.core.planning.policy_answer import decisions_of
from scheduler_service.core.records import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One job's question to the policy of one instant; it may be answered in any thread.

    Attributes:
        view: Shares nothing with the cluster that changes, but for answers of the predictor that arrive meanwhile.
        pending: The jobs of the view by id.
    """

    job_id: str
    policy: Policy
    view: SchedulingView
    pending: Mapping[str, PendingJob]

    def about(self, job_id: str) -> Explanation:
        """Return the same instant's question about another of its pending jobs."""
        view = replace(self.view, explained_job_id=job_id, index=FreshIndex())
        return replace(self, job_id=job_id, view=view)

    def find(self) -> Decision:
        """Ask the policy and return its checked decision about the job, with the GPUs that were looked at."""
        plan = check_plan(self.view, self.pending, self._decisions())
        for decision in plan.decisions:
            match decision:
                case HoldRest() if self.job_id not in decision.decided:
                    reason = decision.reason_of(self.pending[self.job_id].request)
                    return Hold(job_id=self.job_id, reason=reason, until_ms=decision.until_ms)
                case HoldMany() if self.job_id in decision.job_ids:
                    return Hold(job_id=self.job_id, reason=decision.reason, until_ms=decision.until_ms)
                case _ if decision.job_id == self.job_id:
                    return decision
        raise AssertionError(f"a checked plan has a decision about {self.job_id}")

    def _decisions(self) -> Sequence[Decision]:
        try:
            return decisions_of(self.policy, self.view)
        except POLICY_FAULTS:  # recorded where the same policy decides
            return (HoldMany(job_ids=tuple(self.pending), reason=Reason(code="POLICY_FAILED")),)


def frozen_view(view: SchedulingView, job_id: str, reported: Mapping[str, RunningJob]) -> SchedulingView:
    """Return a view that stays as it is, with the table of one job wanted.

    Args:
        view: Of the present instant.
        job_id: The job.
        reported: The running jobs as their newest reports show them.
    """
    return replace(
        view,
        nodes=dict(view.nodes),
        gpus=dict(view.gpus),
        pending=tuple(view.pending),
        running=ExtrapolatedJobs(dict(reported), view.now_ms),
        unpredictable_keys=dict(view.unpredictable_keys),
        host_use=dict(view.host_use),
        slowdown_ewma_ratios=dict(view.slowdown_ewma_ratios),
        interference_curves=dict(view.interference_curves),
        explain=True,
        explained_job_id=job_id,
        index=FreshIndex(),
    )
