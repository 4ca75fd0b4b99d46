"""Between an engine and Decide: reads, asks, and advises or places. It remembers nothing from round to round.

What was placed is written into the job itself (`placed_note`), so that a bridge that was killed between two orders, or
another one in its place, finds it there and goes on.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.placement_notes import placed_note, planned_gpu
from cotenant.engines.port import Engine
from cotenant.engines.records import EngineGpu, EngineJob, EnginePhase, EngineState, Placement
from cotenant.engines.snapshots import make_snapshot
from cotenant.v1 import scheduling_pb2

NOTE_CHARACTERS_MAX: Final = 400
JOBS_PER_ROUND_MAX: Final = 500
"""Jobs decided about at once: one order takes some 40 ms, and what was read grows old meanwhile."""
NOTES_PER_ROUND_MAX: Final = 50
_NO_GPU: Final = "of the engine's GPUs none is known here, or the nodes of all that are take no job now"
_CODE: Final = re.compile(r" \[([A-Z_]+)\]$")


@dataclass(slots=True)
class RoundReport:
    """What one round came to.

    Attributes:
        lines: One for each job that something was done about, and for each warning.
        placed: Jobs that were placed and released.
        disagreements: Jobs that run, or wait, otherwise than planned.
    """

    lines: list[str] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)


class Bridge:
    """Decides for the jobs of one engine.

    Args:
        engine: Whose jobs.
        decide: Asks the scheduler service.
        policy: That decides.
        places: Place jobs; False = advise only.
    """

    def __init__(
        self,
        engine: Engine,
        decide: Callable[[scheduling_pb2.DecideRequest], scheduling_pb2.DecideResponse],
        *,
        policy: str,
        places: bool,
    ) -> None:
        self._engine = engine
        self._decide = decide
        self._policy = policy
        self._places = places

    def run_round(self, *, now_ms: int, notes_max: int = NOTES_PER_ROUND_MAX) -> RoundReport:
        """Read the engine once, and do what is to be done now.

        Args:
            now_ms: Of the snapshot that is decided about.
            notes_max: So many jobs at most are told why they wait; the others in later rounds.

        Raises:
            EngineUnreachableError: The engine does not answer.
            ServiceError: The scheduler service does not.
        """
        state = self._engine.read()
        report = RoundReport(lines=[f"warning: {warning}" for warning in state.warnings])
        self._look_for_disagreement(state, report)
        if self._places:
            self._finish_interrupted(state, report)
        asked = [job for job in state.jobs if job.tag is not None and job.phase in self._phases()]
        notes = [(job, f"cotenant: waits: {job.obstacle}") for job in asked if self._is_stuck(job)]
        waiting = [job for job in asked if not self._is_stuck(job)]
        waiting = _of_this_round(waiting, sum(max(gpu.slots, 1) for gpu in state.gpus.values()) or 1)
        if waiting and not any(node.gpus and node.is_usable for node in state.nodes):
            report.lines.append(f"warning: {_NO_GPU}")
            notes += [(job, f"cotenant: waits: {_NO_GPU}{_complaints(job)} [NO_GPU]") for job in waiting]
        elif waiting:
            notes += self._decide_about({job.job_id: job for job in waiting}, state, report, now_ms)
        self._note(notes, report, notes_max)
        return report

    def _is_stuck(self, job: EngineJob) -> bool:
        return self._places and bool(job.obstacle)

    def _phases(self) -> tuple[EnginePhase, ...]:
        return (EnginePhase.HELD,) if self._places else (EnginePhase.HELD, EnginePhase.WAITING)

    def _decide_about(
        self, waiting: Mapping[str, EngineJob], state: EngineState, report: RoundReport, now_ms: int
    ) -> list[tuple[EngineJob, str]]:
        """Place what can start; return what is to be told to the others."""
        snapshot = make_snapshot(state, waiting.values(), now_ms=now_ms)
        answer = self._decide(scheduling_pb2.DecideRequest(policy=self._policy, snapshot=snapshot))
        report.lines += [f"warning: {one.code}: {one.message}" for one in answer.warnings]
        slots = _Slots(state)
        notes: list[tuple[EngineJob, str]] = []
        placed: dict[str, str] = {}
        for decision in answer.decisions:
            job = waiting.get(decision.job_id)
            if job is None:
                continue
            obstacle = slots.obstacle(decision) if _is_start(decision) and self._places else ""
            if obstacle or not (_is_start(decision) and self._places):
                notes.append((job, f"cotenant: waits: {obstacle}" if obstacle else _advice(job, decision)))
                continue
            try:
                placed[job.job_id] = self._place(job, decision, slots)
            except EngineRefusedError as error:
                report.lines.append(f"job {job.job_id}: {error.message}")
        self._release(placed, report)
        return notes

    def _release(self, placed: Mapping[str, str], report: RoundReport) -> None:
        """Let placed jobs start; what is said of each is its note, or why it does not."""
        refused = self._engine.release_all([*placed]) if placed else {}
        for job_id, note in placed.items():
            report.lines.append(f"job {job_id}: {refused.get(job_id, note)}")
            if job_id not in refused:
                report.placed.append(job_id)

    def _place(self, job: EngineJob, decision: scheduling_pb2.Decision, slots: _Slots) -> str:
        """Give a job its GPU; return its note."""
        gpu_id = decision.start.assignments[0].gpu_id
        taken = slots.take(gpu_id, decision.memory_reserved_bytes)
        note = f"{placed_note(gpu_id, taken)}: {decision.reason.message}{_complaints(job)}"[:NOTE_CHARACTERS_MAX]
        node_id = slots.node_of(gpu_id)
        memory_bytes = decision.memory_reserved_bytes if taken else 0
        self._engine.place(
            Placement(
                job_id=job.job_id, node_id=node_id, gpu_id=gpu_id, slots=taken, note=note, memory_bytes=memory_bytes
            )
        )
        return note

    def _note(self, notes: Iterable[tuple[EngineJob, str]], report: RoundReport, notes_max: int) -> None:
        """Write what is new, after all placements: GPUs do not wait for words."""
        fresh = [(job, note) for job, note in notes if job.takes_notes and not _says_the_same(job.note, note)]
        for job, note in fresh[:notes_max]:
            try:
                self._engine.annotate(job.job_id, note)
            except EngineRefusedError as error:
                report.lines.append(f"job {job.job_id}: {error.message}")
                continue
            report.lines.append(f"job {job.job_id}: {note}")

    def _finish_interrupted(self, state: EngineState, report: RoundReport) -> None:
        interrupted = [job.job_id for job in state.jobs if job.phase is EnginePhase.INTERRUPTED]
        self._release(dict.fromkeys(interrupted, "released: it was placed before"), report)

    def _look_for_disagreement(self, state: EngineState, report: RoundReport) -> None:
        """Say where a placed job runs on another GPU, or waits for one that others hold."""
        open_gpu_ids = {gpu.gpu_id for node in state.nodes for gpu in node.gpus if node.is_usable}
        alike = _interchangeable(state)
        for job, planned in _planned(state.jobs):
            is_waiting = job.phase is EnginePhase.PLACED and planned not in alike
            others = sorted(_strangers_on(planned, job, state.jobs)) if is_waiting else []
            found = [alike.get(gpu_id, gpu_id) for gpu_id in job.held_slots]
            runs_elsewhere = job.phase is EnginePhase.RUNNING and found != [alike.get(planned, planned)]
            is_closed = job.phase is EnginePhase.PLACED and planned not in open_gpu_ids
            if runs_elsewhere or others or is_closed:
                report.disagreements.append(job.job_id)
                state_now = f"runs on {', '.join(job.held_slots) or 'no GPU'}" if runs_elsewhere else "waits"
                behind = ", whose node takes no job now" if is_closed else ""
                behind = f", which job {others[0]} holds without being placed" if others else behind
                report.lines.append(f"disagreement: job {job.job_id} was placed on {planned}{behind}, and {state_now}")


def _of_this_round(waiting: Iterable[EngineJob], parts: int) -> list[EngineJob]:
    """Return the oldest of each tenant and queue: a crowd that cannot start must not hide the job that can.

    Args:
        waiting: Those beyond the bound come in a later round.
        parts: Of GPUs that the engine has, at least 1: of one array no more tasks than these are looked at.
    """
    of_array, of_group = Counter[str](), Counter[tuple[str, tuple[str, ...]]]()
    ranked: list[tuple[int, EngineJob]] = []
    for job in sorted(waiting, key=_age):
        if job.array_id:
            of_array[job.array_id] += 1
            if of_array[job.array_id] > min(job.array_running_max or parts, parts):
                continue
        of_group[job.tenant, job.queues] += 1
        ranked.append((of_group[job.tenant, job.queues], job))
    ranked.sort(key=lambda entry: entry[0])
    return sorted((job for _, job in ranked[:JOBS_PER_ROUND_MAX]), key=_age)


def _age(job: EngineJob) -> tuple[int, str]:
    return job.submitted_at_ms, job.job_id


def _planned(jobs: Iterable[EngineJob]) -> Iterator[tuple[EngineJob, str]]:
    return ((job, planned_gpu(job.note)) for job in jobs if job.tag is not None and planned_gpu(job.note))


def _interchangeable(state: EngineState) -> dict[str, str]:
    """Return a common name, by id, for those among which the engine chooses."""
    return {
        gpu.gpu_id: f"{node.node_id}: {gpu.device}"
        for node in state.nodes
        for gpu in node.gpus
        if gpu.is_interchangeable
    }


def _strangers_on(gpu_id: str, job: EngineJob, jobs: Iterable[EngineJob]) -> Iterator[str]:
    """Yield the jobs that hold a GPU without having been placed there."""
    for other in jobs:
        holds = other.phase is EnginePhase.RUNNING and gpu_id in other.held_slots
        if holds and other.job_id != job.job_id and planned_gpu(other.note) != gpu_id:
            yield other.job_id


def _is_start(decision: scheduling_pb2.Decision) -> bool:
    return decision.WhichOneof("action") == "start"


def _says_the_same(before: str, note: str) -> bool:
    """Say whether a note tells its user nothing new: the same, or that the job waits for the same reason."""
    codes = _CODE.search(before), _CODE.search(note)
    return before == note or (codes[0] is not None and codes[1] is not None and codes[0][1] == codes[1][1])


def _advice(job: EngineJob, decision: scheduling_pb2.Decision) -> str:
    """Return what is told about a job that is not placed now; why one waits ends with the reason's code."""
    said, code = decision.reason.message, f" [{decision.reason.code}]"
    if _is_start(decision):
        gpus = ", ".join(part.gpu_id for part in decision.start.assignments)
        memory = f"{decision.memory_reserved_bytes / 2**30:.1f} GiB"
        said, code = f"would start on {gpus} with {memory} of its memory: {said}", ""
    return f"cotenant: {said}{_complaints(job)}"[: NOTE_CHARACTERS_MAX - len(code)] + code


def _complaints(job: EngineJob) -> str:
    """Return what is wrong with what its user wrote of a job."""
    return f" ({'; '.join(job.tag.complaints)})" if job.tag is not None and job.tag.complaints else ""


class _Slots:
    """Parts of GPUs that are left, as the engine counts them; a plan that it would not start is not given to it."""

    def __init__(self, state: EngineState) -> None:
        self._gpus: Mapping[str, EngineGpu] = state.gpus
        self._node_of = {gpu.gpu_id: node.node_id for node in state.nodes for gpu in node.gpus}
        self._used: Counter[str] = Counter()
        for job in state.jobs:
            for gpu_id, slots in job.held_slots.items():
                self._used[gpu_id] += slots or self._whole(gpu_id)

    def node_of(self, gpu_id: str) -> str:
        """Return the node of a GPU."""
        return self._node_of[gpu_id]

    def obstacle(self, decision: scheduling_pb2.Decision) -> str:
        """Say why the engine cannot carry a start out; empty = it can."""
        parts = decision.start.assignments
        if len(parts) != 1:
            return "jobs of several GPUs are not placed; leave it to the engine's own scheduler"
        if decision.start.accumulation_steps > 1:
            return "it fits in several passes of a step only, which the engine cannot tell it; give it a smaller batch"
        gpu_id = parts[0].gpu_id
        if gpu_id not in self._gpus:
            return f"the GPU {gpu_id} is gone"
        wanted = self._wanted(gpu_id, decision.memory_reserved_bytes) or self._whole(gpu_id)
        left = self._whole(gpu_id) - self._used[gpu_id]
        return f"it needs {wanted} of the {self._whole(gpu_id)} parts of {gpu_id}, and {left} are left" * (
            wanted > left
        )

    def take(self, gpu_id: str, memory_bytes: int) -> int:
        """Note that a job gets a part of a GPU; return how large, 0 = all of it."""
        slots = self._wanted(gpu_id, memory_bytes)
        self._used[gpu_id] += slots or self._whole(gpu_id)
        return slots

    def _whole(self, gpu_id: str) -> int:
        gpu = self._gpus.get(gpu_id)
        return max(gpu.slots, 1) if gpu is not None else 1

    def _wanted(self, gpu_id: str, memory_bytes: int) -> int:
        """Return the parts that stand for some memory, rounded down: together those of a plan that fits fit."""
        gpu = self._gpus[gpu_id]
        if not gpu.slots or memory_bytes >= gpu.memory_bytes:
            return 0
        return max(math.floor(gpu.slots * memory_bytes / gpu.memory_bytes), 1)
