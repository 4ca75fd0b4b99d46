"""Troubles of the scheduler and its nodes that an operator should look after; they come with the list of nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cotenant import __version__
from cotenant.access.certificate_fields import Validity, validity
from cotenant.quantities import format_duration
from cotenant.v1 import resources_pb2
from scheduler_service.adapters.agents.agent_refusals import REFUSAL_TEXTS, Refusal
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.core.state import ClusterState
from scheduler_service.errors import PredictorError

NAMED_MAX = 20
"""Of each code; the others are counted."""
CLOCK_OFF_MS = 60_000
"""A heartbeat may have waited nearly as long as a lease before it was read, so less is no finding."""
ENDS_SOON_MS = 14 * 86_400_000
ENDS_SOON_RATIO = 1 / 3
"""Certificates that are made to last days are told of in the last third of their time only."""
_REFUSALS = (Refusal.SECOND_INSTANCE, Refusal.FOREIGN_CLUSTER, Refusal.ATTEMPTS_MISSING)
AUTHORITY = "the authority of callers"
_RENEWED = "`cotenant certs renew`, copy it there, start the program again"
_NEW_AUTHORITY = "make another one (`cotenant certs init`), and issue all certificates again"
_PAGE = "docs/operations.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Where troubles are seen.

    Attributes:
        storage_failure: Returns why nothing can be stored; empty = it can.
        list_faults: Returns which files of rules or callers cannot be read; reads them.
        predictor_fault: Returns why the predictor does not answer.
        certificates: When those of the scheduler itself are valid, by what they are.
        wall_ms: Reads the clock of this machine.
    """

    storage_failure: Callable[[], str] = lambda: ""
    list_faults: Callable[[], Sequence[str]] = lambda: ()
    predictor_fault: Callable[[], PredictorError | None] = lambda: None
    certificates: Mapping[str, Validity] = field(default_factory=dict)
    wall_ms: Callable[[], int] = lambda: 0


def trouble_warnings(
    watched: Watched, state: ClusterState, sessions: AgentSessions, *, now_ms: int, sees_all: bool
) -> list[resources_pb2.Warning]:
    """Return what to look after, worst first.

    Args:
        watched: Where to look besides the nodes.
        state: Of the cluster.
        sessions: Of its agents.
        now_ms: The instant of the scheduler's own clock, by which refusals were noted.
        sees_all: Whether the caller may know what files of rules hold.
    """
    fault = watched.predictor_fault()
    found = {
        "STATE_UNWRITABLE": _storage(watched.storage_failure()),
        fault.code if fault else "PREDICTOR_UNAVAILABLE": _predictor(fault),
        "LIST_NOT_READ": watched.list_faults() if sees_all else (),
        **{refusal.name: _refused(sessions, refusal, now_ms) for refusal in _REFUSALS},
        "CLOCK_OFF": _clocks(sessions),
        "CERTIFICATE_ENDS": _certificates(watched, sessions),
        "AGENT_VERSION": _versions(state, sessions),
    }
    return [warning for code, texts in found.items() for warning in _bounded(code, list(texts))]


def _bounded(code: str, texts: Sequence[str]) -> Iterator[resources_pb2.Warning]:
    for text in texts[:NAMED_MAX]:
        yield resources_pb2.Warning(code=code, message=text)
    if len(texts) > NAMED_MAX:
        yield resources_pb2.Warning(code=code, message=f"{len(texts) - NAMED_MAX} more of that kind")


def _storage(failure: str) -> Iterator[str]:
    if failure:
        yield f"the scheduler can store nothing, so until its disk can be written it starts nothing: {failure}"


def _predictor(fault: PredictorError | None) -> Iterator[str]:
    if fault is not None:
        yield f"{fault.message}; until it answers (see its log), new jobs start alone, without a prediction"


def _refused(sessions: AgentSessions, refusal: Refusal, now_ms: int) -> Iterator[str]:
    for node_id, ago_ms in sessions.refusals.recent(refusal, now_ms=now_ms).items():
        when = f"last {format_duration(ago_ms)} ago"
        yield f"node {node_id}, {when}: {REFUSAL_TEXTS[refusal]} ({_PAGE}, Agents that may not join)"


def _clocks(sessions: AgentSessions) -> Iterator[str]:
    for node_id, session in sorted(sessions.connected.items()):
        ahead_ms = session.clock_ahead_ms or 0
        if abs(ahead_ms) > CLOCK_OFF_MS:
            off = format_duration(abs(round(ahead_ms, -3)))
            side = "ahead of" if ahead_ms > 0 else "behind"
            yield (
                f"the clock of node {node_id} is {off} {side} the scheduler's: times in its logs are off, and it may "
                "refuse certificates that are in date; set the clocks by NTP"
            )


def _certificates(watched: Watched, sessions: AgentSessions) -> Iterator[str]:
    shown = {f"node {node_id}": one.certificate for node_id, one in sorted(sessions.connected.items())}
    for holder, valid in {**watched.certificates, **shown}.items():
        if valid is None:
            continue
        soon_ms = min(ENDS_SOON_MS, (valid.ends_at_ms - valid.begins_at_ms) * ENDS_SOON_RATIO)
        left_ms = valid.ends_at_ms - watched.wall_ms()
        if left_ms < soon_ms:
            when = f"ends in {format_duration(left_ms)}" if left_ms > 0 else "has ended"
            remedy = _NEW_AUTHORITY if holder == AUTHORITY else _RENEWED
            yield f"the certificate of {holder} {when}: {remedy}"


def _versions(state: ClusterState, sessions: AgentSessions) -> Iterator[str]:
    others: dict[str, list[str]] = {}
    for node_id in sorted(sessions.connected):
        node = state.nodes.get(node_id)
        if node is not None and node.agent_version != __version__:
            others.setdefault(node.agent_version, []).append(node_id)
    for version, node_ids in others.items():
        more = f" and {len(node_ids) - NAMED_MAX} more" if len(node_ids) > NAMED_MAX else ""
        yield (
            f"{', '.join(node_ids[:NAMED_MAX])}{more}: version {version or 'unknown'} of the agent, the scheduler has "
            f"{__version__}; {_upgrade(version)} ({_PAGE}, Upgrade)"
        )


def _upgrade(version: str) -> str:
    is_newer = _numbers(version) > _numbers(__version__)
    return "upgrade the scheduler: it comes first" if is_newer else "upgrade the agents, one node after the other"


def _numbers(version: str) -> list[int]:
    return [int(part) if part.isdecimal() else 0 for part in version.split(".")]


def own_certificates(files: Mapping[str, Path | None]) -> dict[str, Validity]:
    """Read certificates as they are served from now on, by what they are; one that cannot be read is left out."""
    found = {}
    for name, file in files.items():
        with contextlib.suppress(OSError):
            valid = validity(file.read_bytes()) if file is not None else None
            if valid is not None:
                found[name] = valid
    return found
