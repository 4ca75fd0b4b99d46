"""Asks the predictor for what a snapshot lacks. What it refuses about single jobs or device types costs only these.

A job without a prediction runs on GPUs of its own; on a device type that the predictor does not know all jobs do. So
does every job about which nothing is stated where the predictor cannot be asked or answers nothing, as under the
scheduler itself; the caller learns it from a warning and may ask again later.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cotenant.v1 import resources_pb2, scheduling_pb2
from scheduler_service.adapters.job_specs import kept_settings
from scheduler_service.adapters.predictor.predictor_client import UNKNOWN_DEVICE, PredictorClient
from scheduler_service.core.cluster_view.shared_ways import device_of, way_of
from scheduler_service.core.commands import PairMember, RequestPairPredictions, RequestPrediction
from scheduler_service.core.predictions.prediction_store import PredictionStore
from scheduler_service.core.records import JobPrediction, PairPrediction, Share
from scheduler_service.errors import PredictorError
from scheduler_service.grpc_api.snapshots import translate_snapshot
from scheduler_service.grpc_api.snapshots.snapshot_rows import NAMED_MAX, bounded_warnings

NO_GRAPH: Final = "NO_GRAPH"
PAIRS_UNKNOWN: Final = "PAIRS_UNKNOWN"
_UNANSWERED: Final = PredictorError("the predictor did not answer in time", code="PREDICTOR_TIMEOUT")
_NO_PREDICTOR: Final = PredictorError(
    "no predictor is configured, and the snapshot holds no job_predictions of it", code="NO_PREDICTOR"
)
# The predictor's own trouble; every other refusal is about what was asked.
_NO_ANSWER: Final = frozenset(
    {"NO_PREDICTOR", "OVERLOADED", "EXTRACTION_BUSY", "EXTRACTION_CLOSED", "DEADLINE", "MODEL"}
)

_Missing = Mapping[tuple[str, str], scheduling_pb2.SnapshotJob]
"""A job for every key and device type about which nothing is known."""


@dataclass(slots=True)
class PredictorAnswers:
    """What asking came to, besides the predictions in the store.

    Attributes:
        model_version: Of the answers; empty = nothing was asked or answered.
        warnings: What was answered with less than was asked for.
    """

    model_version: str = ""
    warnings: list[resources_pb2.Warning] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPredictions:
    """What a snapshot lacks.

    Attributes:
        jobs: All of the snapshot, valid rows only.
        devices: The least memory of each of its device types, in bytes.
        store: What the snapshot itself states.
        askable: The jobs that a predictor is to be asked about.
        answers: What is known without asking.
    """

    jobs: Sequence[scheduling_pb2.SnapshotJob]
    devices: Mapping[str, int]
    store: PredictionStore
    askable: _Missing
    answers: PredictorAnswers


def find_missing(
    jobs: Sequence[scheduling_pb2.SnapshotJob],
    keys: Sequence[str],
    devices: Mapping[str, int],
    store: PredictionStore,
    *,
    can_ask: bool,
) -> MissingPredictions:
    """Find what a snapshot lacks; the store notes the jobs about which no predictor can be asked.

    Args:
        jobs: All of the snapshot, valid rows only.
        keys: Of each its key.
        devices: The least memory of each of its device types, in bytes.
        store: What the snapshot itself states.
        can_ask: There is a predictor.
    """
    missing = _missing(zip(keys, jobs, strict=True), devices, store)
    graphless = {place: job for place, job in missing.items() if not job.graph_sha256}
    for key, device in graphless:
        store.put_failure(key, device, NO_GRAPH)
    answers = PredictorAnswers(warnings=_graphless_warnings(graphless.values()))
    askable = {place: job for place, job in missing.items() if job.graph_sha256}
    if askable and not can_ask:
        answers.warnings += _unanswered(store, askable, _NO_PREDICTOR)
        askable = {}
    return MissingPredictions(jobs=jobs, devices=devices, store=store, askable=askable, answers=answers)


async def ask_missing(missing: MissingPredictions, predictor: PredictorClient, deadline_s: float) -> PredictorAnswers:
    """Fill the store with what the predictor answers about jobs and pairs of a snapshot; what fails is noted there.

    Args:
        missing: What is to be asked.
        predictor: Is asked.
        deadline_s: For all questions together.
    """
    store, askable, asked = missing.store, missing.askable, missing.answers
    ends_at_s = asyncio.get_running_loop().time() + deadline_s
    conversation = _Conversation(predictor, store, missing.devices, ends_at_s)
    asked.model_version, failures = await conversation.ask_about_jobs(askable)
    asked.warnings += _failure_warnings(askable, failures)
    answered = frozenset(key for key, device in askable if (key, device) not in failures)
    for place in (place for device in missing.devices for place in store.places(device)):
        error = await conversation.ask_about_pairs(missing.jobs, place, answered)
        if error is not None:
            where = f"how jobs slow each other down on {_worded(place)}"
            message = f"{where}: {error.message}; no job shares there on that ground"
            asked.warnings.append(resources_pb2.Warning(code=PAIRS_UNKNOWN, message=message))
    return asked


class _Conversation:
    """Questions that share a deadline, an instant of the event loop's clock."""

    def __init__(
        self, predictor: PredictorClient, store: PredictionStore, devices: Mapping[str, int], ends_at_s: float
    ) -> None:
        self._predictor = predictor
        self._store = store
        self._devices = devices
        self._ends_at_s = ends_at_s

    async def ask_about_jobs(self, askable: _Missing) -> tuple[str, dict[tuple[str, str], PredictorError]]:
        """Return the model version, and what failed."""
        tasks = {
            place: asyncio.ensure_future(self._predictor.predict_job(self._question(*place, job)))
            for place, job in askable.items()
        }
        await asyncio.wait(tasks.values(), timeout=self._seconds_left())
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        version, failures = "", dict[tuple[str, str], PredictorError]()
        for place, task in tasks.items():
            answer = _result(task)
            if isinstance(answer, PredictorError):
                failures[place] = answer
                self._store.put_failure(*place, answer.code)
            else:
                self._store.put_job(answer)
                version = version or answer.model_version
        return version, failures

    async def ask_about_pairs(
        self, jobs: Iterable[scheduling_pb2.SnapshotJob], place: str, answered: Collection[str]
    ) -> PredictorError | None:
        """Ask how jobs slow each other down on a device type, or on a place of one; None = what was asked is known.

        One graph that the predictor refuses spoils the whole question, so it is asked again about those keys of which
        the predictor has just predicted the job.
        """
        members = self._members(jobs, device_of(place))
        if not self._new_keys(members, place):
            return None
        error = await self._ask_about(members, place)
        sure = {key: member for key, member in members.items() if key in answered}
        if error is not None and not _is_no_answer(error) and len(sure) < len(members) and sure:
            return await self._ask_about(sure, place)
        return error

    async def _ask_about(self, members: Mapping[str, PairMember], place: str) -> PredictorError | None:
        question = RequestPairPredictions(
            device=device_of(place),
            members=tuple(members.values()),
            new_keys=self._new_keys(members, place),
            device_memory_bytes=self._devices[device_of(place)],
            sharing=self._store.way_at(place),
        )
        asking = self._predictor.predict_pairs(question, deadline_s=max(self._seconds_left(), 0.001))
        try:
            pairs: Sequence[PairPrediction] = await asyncio.wait_for(asking, timeout=self._seconds_left())
        except TimeoutError:
            return _UNANSWERED
        except PredictorError as error:
            return error
        for pair in pairs:
            self._store.put_pair(pair)
        return None

    def _members(self, jobs: Iterable[scheduling_pb2.SnapshotJob], device: str) -> dict[str, PairMember]:
        members: dict[str, PairMember] = {}
        for job in jobs:
            request = translate_snapshot.request(job)
            may_share = request.share is not Share.NEVER and self._store.job(request.key, device) is not None
            if request.key and job.graph_sha256 and may_share:
                settings = kept_settings(job)
                members[request.key] = PairMember(key=request.key, graph_sha256=job.graph_sha256, settings=settings)
        return members

    def _new_keys(self, members: Collection[str], place: str) -> tuple[str, ...]:
        store = self._store
        return tuple(key for key in members if any(store.pair(key, other, place) is None for other in members))

    def _question(self, key: str, device: str, job: scheduling_pb2.SnapshotJob) -> RequestPrediction:
        request = translate_snapshot.request(job)
        micro_batch_sizes = {
            -(-request.global_batch_size // (gpus * parts)) for gpus in request.allowed_gpus for parts in (1, 2, 4, 8)
        }
        return RequestPrediction(
            key=key,
            device=device,
            device_memory_bytes=self._devices[device],
            graph_sha256=job.graph_sha256,
            settings=kept_settings(job),
            micro_batch_sizes=tuple(sorted(micro_batch_sizes)),
            gpus=request.allowed_gpus,
        )

    def _seconds_left(self) -> float:
        return max(self._ends_at_s - asyncio.get_running_loop().time(), 0.0)


def _worded(place: str) -> str:
    way = way_of(place)
    return f"{device_of(place)} ({way.label.replace('_', ' ')})" if way else place


def _result(task: asyncio.Future[JobPrediction]) -> JobPrediction | PredictorError:
    if task.cancelled():
        return _UNANSWERED
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, PredictorError):
        return error
    raise error


def _is_no_answer(error: PredictorError) -> bool:
    return error.code in _NO_ANSWER or error.code.startswith("PREDICTOR_")


def _missing(
    jobs: Iterable[tuple[str, scheduling_pb2.SnapshotJob]], devices: Mapping[str, int], store: PredictionStore
) -> dict[tuple[str, str], scheduling_pb2.SnapshotJob]:
    """Return one job, with a graph where one has it, for every (key, device) that nothing is known about.

    Jobs without a key run exclusively.
    """
    found: dict[tuple[str, str], scheduling_pb2.SnapshotJob] = {}
    unknown: dict[str, list[str]] = {}
    for key, job in jobs:
        if key and key not in unknown:
            unknown[key] = [device for device in devices if store.job(key, device) is None]
        for device in unknown.get(key, ()):
            known = found.get((key, device))
            if known is None or not known.graph_sha256:
                found[key, device] = job
    return found


def _graphless_warnings(jobs: Iterable[scheduling_pb2.SnapshotJob]) -> list[resources_pb2.Warning]:
    named = _listed(job.job_id for job in jobs)
    text = f"no prediction for {named}: without a graph there is none; what starts of it starts alone"
    return bounded_warnings(NO_GRAPH, [text] if named else [])


def _failure_warnings(
    askable: _Missing, failures: Mapping[tuple[str, str], PredictorError]
) -> list[resources_pb2.Warning]:
    """Return which device types and which jobs are answered with less, and why; each cause once."""
    by_cause: dict[tuple[str, str], set[str]] = defaultdict(set)
    for (key, device), error in failures.items():
        if error.code == UNKNOWN_DEVICE:
            cause = (error.code, f"{error.message}; jobs start alone on GPUs of type {device!r}")
            by_cause[cause] |= set()
        else:
            by_cause[error.code, error.message].add(askable[key, device].job_id)
    by_code: dict[str, list[str]] = defaultdict(list)
    for (code, message), job_ids in by_cause.items():
        text = (
            f"no prediction for {_listed(job_ids)}: {message}; what starts of it starts alone" if job_ids else message
        )
        by_code[code].append(text)
    return [warning for code, messages in by_code.items() for warning in bounded_warnings(code, messages)]


def _unanswered(store: PredictionStore, askable: _Missing, error: PredictorError) -> list[resources_pb2.Warning]:
    """Note that no predictor can be asked about some jobs."""
    for place in askable:
        store.put_failure(*place, error.code)
    return _failure_warnings(askable, dict.fromkeys(askable, error))


def _listed(job_ids: Iterable[str]) -> str:
    named = sorted(set(job_ids))
    more = len(named) - NAMED_MAX
    return ", ".join(named[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
