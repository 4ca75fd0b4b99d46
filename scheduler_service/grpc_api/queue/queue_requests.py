"""What requests about the queue lead to: facts, proposed when the request's turn has come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cotenant.access.callers import Caller
from cotenant.v1 import scheduling_pb2
from scheduler_service.adapters.job_specs import kept_launch, spec_message
from scheduler_service.adapters.proto_enums import SHARE_FROM_PROTO, SHARE_TO_PROTO
from scheduler_service.adapters.storage.recovery import JobNumbers
from scheduler_service.core.engine import SchedulerEngine
from scheduler_service.core.event_handling.queue_changes import STOPPABLE_PHASES
from scheduler_service.core.events import Event, JobCancelled
from scheduler_service.core.jobs.job_records import JobRecord
from scheduler_service.core.queue.queue_terms import PARENTS_MAX
from scheduler_service.core.queue_events import JobAltered, JobHeld, JobReleased, NodeCordoned, NodeUncordoned
from scheduler_service.core.records import DEFAULT_MAX_SLOWDOWN_RATIO, ENDED_PHASES, Phase
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import (
    FieldViolation,
    InvalidRequestError,
    NotPermittedError,
    UnknownJobError,
    UnknownNodeError,
    WrongJobPhaseError,
)
from scheduler_service.grpc_api.jobs.job_requests import check_room, known_job, submission, submitted
from scheduler_service.grpc_api.queue.array_specs import task_spec
from scheduler_service.grpc_api.queue.repetitions import has_only_failed, living_repetition
from scheduler_service.grpc_api.validation import body_sha256
from scheduler_service.grpc_api.visibility import actor_of, check_visible, owner_of
from scheduler_service.live_loop import Mutation, Proposal

_FAILED = (Phase.FAILED, Phase.CANCELLED)
_Repeatable = (
    scheduling_pb2.HoldJobRequest
    | scheduling_pb2.ReleaseJobRequest
    | scheduling_pb2.AlterJobRequest
    | scheduling_pb2.SubmitArrayRequest
    | scheduling_pb2.CancelArrayRequest
    | scheduling_pb2.CordonNodeRequest
    | scheduling_pb2.UncordonNodeRequest
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequests:
    """Requests of one caller.

    Attributes:
        has_trials: Jobs may share on trial in this cluster.
    """

    engine: SchedulerEngine
    numbers: JobNumbers
    caller: Caller
    has_trials: bool = True

    @property
    def _state(self) -> ClusterState:
        return self.engine.state

    def hold(self, request: scheduling_pb2.HoldJobRequest) -> Mutation:
        """Propose that a job waits; one that is held stays as it is."""

        def propose() -> Proposal:
            otherwise = (
                "`cotenant hold --stop` stops a running one with a checkpoint, `cotenant pause` lets it stand still "
                "for a minute"
            )
            wanted = STOPPABLE_PHASES if request.stop_running else ()
            job = self._pending(request.job_id, "held", otherwise, or_in=wanted)
            stops = request.stop_running
            event = JobHeld(at_ms=0, job_id=job.job_id, stops_running=stops, actor=actor_of(self.caller))
            return Proposal(event=None if job.request.terms.is_held else event, answer=job.job_id)

        return _mutation(request, propose)

    def release(self, request: scheduling_pb2.ReleaseJobRequest) -> Mutation:
        """Propose that a held job starts; another one that has not ended stays as it is."""

        def propose() -> Proposal:
            job = known_job(self.engine, request.job_id)
            if job.phase in ENDED_PHASES:
                raise WrongJobPhaseError(
                    f"{job.job_id} is {job.phase.value}; only a held job can be released; {_way_back(job)}"
                )
            event = JobReleased(at_ms=0, job_id=job.job_id, actor=actor_of(self.caller))
            is_due = job.phase in (Phase.PENDING, Phase.STOPPING) and job.request.terms.is_held
            return Proposal(event=event if is_due else None, answer=job.job_id)

        return _mutation(request, propose)

    def alter(self, request: scheduling_pb2.AlterJobRequest) -> Mutation:
        """Propose that a pending job asks for something else, or that a running one may run longer or less long."""
        of_limit_only = not (request.share or request.HasField("priority") or request.HasField("max_slowdown_ratio"))

        def propose() -> Proposal:
            otherwise = (
                "of a running one the time limit alone can; stop it with `cotenant hold --stop`, alter and release it"
            )
            job = self._pending(request.job_id, "altered", otherwise, or_in=STOPPABLE_PHASES if of_limit_only else ())
            spec = _altered_spec(job, request)
            if request.HasField("priority"):
                self._check_priority(spec)
            event = JobAltered(
                at_ms=0,
                job_id=job.job_id,
                priority=spec.priority,
                share=SHARE_FROM_PROTO[spec.share],
                max_slowdown_ratio=spec.max_slowdown_ratio or DEFAULT_MAX_SLOWDOWN_RATIO,
                time_limit_ms=spec.time_limit_ms,
                launch=kept_launch(spec),
                actor=actor_of(self.caller),
            )
            return Proposal(event=event, answer=job.job_id)

        return _mutation(request, propose)

    def submission(self, request: scheduling_pb2.SubmitJobRequest) -> Mutation:
        """Propose a new job; the answer is its id."""
        return self._submission(request, lambda: self._checked(request.spec))

    def _submission(
        self, request: scheduling_pb2.SubmitJobRequest, read_spec: Callable[[], scheduling_pb2.JobSpec]
    ) -> Mutation:
        return submission(
            request,
            self.engine,
            self.numbers,
            has_trials=self.has_trials,
            actor=actor_of(self.caller),
            read_spec=read_spec,
        )

    def array(self, request: scheduling_pb2.SubmitArrayRequest) -> Mutation:
        """Propose an array; the answer is its id and the numbers of the first and the last task."""

        def propose() -> Proposal:
            check_room(self._state, len(request.tasks))
            spec = self._checked(request.spec)
            first = self.numbers.last + 1
            array_id = f"array-{first}"
            specs = [task_spec(spec, task, array_id) for task in request.tasks]
            actor = actor_of(self.caller)
            tasks = [submitted(self.numbers.next_id(), one, has_trials=self.has_trials, actor=actor) for one in specs]
            answer = f"{array_id} {first} {self.numbers.last}"
            return Proposal(event=tasks[-1], answer=answer, earlier=tuple(tasks[:-1]))

        return _mutation(request, propose)

    def cancel_array(self, request: scheduling_pb2.CancelArrayRequest) -> Mutation:
        """Propose the end of every task of an array; the answer names those that had not ended."""

        def propose() -> Proposal:
            tasks = self._living_tasks(request.array_id)
            actor = actor_of(self.caller)
            # The last ones first: a task that is cancelled makes no room for another one of the array.
            facts: list[Event] = [
                JobCancelled(at_ms=0, job_id=job.job_id, actor=actor) for job in sorted(tasks, key=_waits_first)
            ]
            answer = ",".join(job.job_id for job in tasks)
            return Proposal(event=facts[-1] if facts else None, answer=answer, earlier=tuple(facts[:-1]))

        return _mutation(request, propose)

    def cordon(self, request: scheduling_pb2.CordonNodeRequest) -> Mutation:
        """Propose that nothing new starts on a node; the answer names the jobs that are moved away."""

        def propose() -> Proposal:
            node = self._state.nodes.get(request.node_id)
            if node is None:
                raise UnknownNodeError(request.node_id)
            event = NodeCordoned(at_ms=0, node_id=node.node_id, is_draining=request.drain, actor=actor_of(self.caller))
            is_due = not node.is_cordoned or request.drain
            moving = self._state.occupancy.jobs_on_node(node.node_id) if request.drain else ()
            return Proposal(event=event if is_due else None, answer=",".join(moving))

        return _mutation(request, propose)

    def uncordon(self, request: scheduling_pb2.UncordonNodeRequest) -> Mutation:
        """Propose that a node takes jobs again; one that does stays as it is."""

        def propose() -> Proposal:
            node = self._state.nodes.get(request.node_id)
            if node is None:
                raise UnknownNodeError(request.node_id)
            event = NodeUncordoned(at_ms=0, node_id=node.node_id, actor=actor_of(self.caller))
            return Proposal(event=event if node.is_cordoned else None, answer=node.node_id)

        return _mutation(request, propose)

    def repeated_spec(self, job_id: str, *, is_answered: bool = False) -> scheduling_pb2.JobSpec:
        """Return the spec of a failed or cancelled job as it is handed in again.

        Args:
            job_id: The job.
            is_answered: The same request was answered before, and nothing follows from this one.

        Raises:
            WrongJobPhaseError: It has neither failed nor was cancelled, or waits for what has failed.
        """
        job = known_job(self.engine, job_id)
        if job.phase not in _FAILED:
            raise WrongJobPhaseError(f"{job_id} is {job.phase.value}; only a failed or cancelled job can be retried")
        spec = spec_message(job.submission.launch, job.submission.settings)
        for name in ("held", "deadline_at_ms"):
            spec.ClearField(name)
        spec.after_job_ids[:] = () if is_answered else self._living_parents(spec)
        spec.after_any = spec.after_any and bool(spec.after_job_ids)
        spec.retry_of = job_id
        return spec

    def repetition(
        self, request: scheduling_pb2.RetryJobRequest, submission: scheduling_pb2.SubmitJobRequest
    ) -> Mutation:
        """Propose a job that is handed in again, as long as no other repetition of it lives; the answer is its id."""

        def read_spec() -> scheduling_pb2.JobSpec:
            living = living_repetition(self._state, request.job_id)
            if living:
                raise WrongJobPhaseError(
                    f"{request.job_id} was handed in again: {living} is {self._state.jobs[living].phase.value}; cancel "
                    "that first, or hand in another job: two of them would run one script at once, in one folder"
                )
            # One that is handed in again may have the class that it had.
            return submission.spec

        proposed = self._submission(submission, read_spec)
        # What it waits for may have ended when the same request comes again.
        return replace(proposed, body_sha256=body_sha256(request))

    def _living_parents(self, spec: scheduling_pb2.JobSpec) -> Sequence[str]:
        """Return what a job still has to wait for: its parents that have not ended, or their repetitions.

        Raises:
            WrongJobPhaseError: It waits for the success of one that has failed and was not handed in again.
        """
        found: dict[str, None] = {}
        for parent in spec.after_job_ids:
            known = self._state.jobs.get(parent)
            is_living = known is not None and not known.has_ended
            living = parent if is_living else living_repetition(self._state, parent)
            if living:
                found[living] = None
            elif not spec.after_any and has_only_failed(self._state, parent):
                raise WrongJobPhaseError(
                    f"it comes after {parent}, which has not finished: retry {parent} first, or submit the job anew "
                    "without --after"
                )
        return list(found)

    def changeable_array(self, array_id: str) -> None:
        """Look whether an array is known and the caller may change it.

        Raises:
            UnknownJobError: No known job is a task of it.
            NotPermittedError: Some of its tasks are another user's.
        """
        tasks = self._tasks(array_id)
        if not tasks:
            raise UnknownJobError(array_id)
        if not self.caller.acts_for_all and any(owner_of(job) != self.caller.name for job in tasks):
            raise NotPermittedError(f"{array_id} is another user's; only its owner and operators may do this")

    def _tasks(self, array_id: str) -> list[JobRecord]:
        return [job for job in self._state.jobs.values() if job.request.terms.array_id == array_id]

    def _living_tasks(self, array_id: str) -> list[JobRecord]:
        return [self._state.jobs[job_id] for job_id in self._state.register.tasks_of(array_id)]

    def _pending(self, job_id: str, deed: str, otherwise: str, *, or_in: Sequence[Phase] = ()) -> JobRecord:
        """Return a job that waits; of one that is on its way the refusal says what can be done `otherwise`."""
        job = known_job(self.engine, job_id)
        if job.phase is not Phase.PENDING and job.phase not in or_in:
            remedy = _way_back(job) if job.phase in ENDED_PHASES else otherwise
            raise WrongJobPhaseError(f"{job_id} is {job.phase.value}; only a pending job can be {deed}; {remedy}")
        return job

    def _checked(self, spec: scheduling_pb2.JobSpec) -> scheduling_pb2.JobSpec:
        """Return a spec with arrays that it waits for replaced by their tasks.

        Raises:
            UnknownJobError: It waits for a job or an array that is not known.
            WrongJobPhaseError: It waits for the success of one that has failed.
            NotPermittedError: It waits for another user's job, or is of a higher class than its tenant may have.
        """
        self._check_priority(spec)
        if not spec.after_job_ids:
            return spec
        arrays = self._named_arrays(spec)
        parents = dict.fromkeys(job.job_id for name in spec.after_job_ids for job in self._parents(name, spec, arrays))
        if len(parents) > PARENTS_MAX:
            description = f"stands for {len(parents):,} jobs, at most {PARENTS_MAX:,} can be waited for"
            raise InvalidRequestError(FieldViolation(field="spec.after_job_ids", description=description))
        checked = scheduling_pb2.JobSpec()
        checked.CopyFrom(spec)
        checked.after_job_ids[:] = list(parents)
        return checked

    def _named_arrays(self, spec: scheduling_pb2.JobSpec) -> Mapping[str, list[JobRecord]]:
        """Return the known tasks of the arrays that a job waits for, in one look at all jobs.

        In place of one that was handed in again there is its repetition.
        """
        found: dict[str, list[JobRecord]] = {name: [] for name in spec.after_job_ids if name.startswith("array-")}
        for job in self._state.jobs.values() if found else ():
            if job.request.terms.array_id in found:
                found[job.request.terms.array_id].append(job)
        repeated = {job.request.terms.retry_of for tasks in found.values() for job in tasks}
        return {name: [job for job in tasks if job.job_id not in repeated] for name, tasks in found.items()}

    def _parents(
        self, name: str, spec: scheduling_pb2.JobSpec, arrays: Mapping[str, list[JobRecord]]
    ) -> list[JobRecord]:
        parents = arrays[name] if name in arrays else [known_job(self.engine, name)]
        if not parents:
            raise UnknownJobError(name)
        for job in parents:
            check_visible(self.caller, job)
            if job.phase in _FAILED and not spec.after_any:
                raise WrongJobPhaseError(
                    f"{job.job_id} is {job.phase.value}, so a job after it would never start; leave it out of --after, "
                    "or wait for any end with --after-any"
                )
        return parents

    def _check_priority(self, spec: scheduling_pb2.JobSpec) -> None:
        rules = self._state.tenants.rules
        most = rules.of(spec.tenant).priority_max if rules is not None else None
        if most is not None and spec.priority > most and not self.caller.acts_for_all:
            raise NotPermittedError(
                f"jobs of tenant {spec.tenant!r} may have a priority of at most {most}, not {spec.priority}; use a "
                "lower --priority, or ask an operator"
            )


def _way_back(job: JobRecord) -> str:
    """Return how a job that has ended may run again."""
    return "`cotenant retry` hands it in again" if job.phase in _FAILED else "submit it anew"


def _mutation(request: _Repeatable, propose: Callable[[], Proposal]) -> Mutation:
    return Mutation(propose=propose, request_id=request.request_id, body_sha256=body_sha256(request))


def _waits_first(job: JobRecord) -> tuple[bool, int]:
    return job.holds_gpus, -job.request.terms.array_index


def _altered_spec(job: JobRecord, request: scheduling_pb2.AlterJobRequest) -> scheduling_pb2.JobSpec:
    spec = spec_message(job.submission.launch, job.submission.settings)
    for name in ("priority", "max_slowdown_ratio", "time_limit_ms"):
        if request.HasField(name):
            setattr(spec, name, getattr(request, name))
    spec.share = request.share or spec.share or SHARE_TO_PROTO[job.request.share]
    return spec
