"""audit: who did what, from the event log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path

import click

from cotenant.terminal_text import harmless
from scheduler_service.adapters.storage.event_log import StoredEvent
from scheduler_service.adapters.storage.stored_records import read_stored_events
from scheduler_service.core.events import (
    Actor,
    CommandGiven,
    IncarnationBegan,
    JobCancelled,
    JobSubmitted,
    NodeForgotten,
    PauseRequested,
    PolicyChosen,
    RestoreConfirmed,
    ResumeRequested,
    UnknownAttemptsFound,
)
from scheduler_service.core.queue_events import (
    JobAltered,
    JobHeld,
    JobReleased,
    NodeCordoned,
    NodeUncordoned,
    TenantsChosen,
)
from scheduler_service.settings import SETTINGS, Settings

UNKNOWN = "unknown"
_DEEDS: Mapping[type[CommandGiven], str] = {
    JobSubmitted: "submit",
    JobCancelled: "cancel",
    PauseRequested: "pause",
    ResumeRequested: "resume",
    PolicyChosen: "use policy",
    NodeForgotten: "forget node",
    IncarnationBegan: "restore",
    RestoreConfirmed: "confirm restore",
    UnknownAttemptsFound: "stop unknown",
    JobHeld: "hold",
    JobReleased: "release",
    JobAltered: "alter",
    NodeCordoned: "cordon node",
    NodeUncordoned: "uncordon node",
    TenantsChosen: "use rules",
}
# Of an incarnation's id, as in `cotenant nodes confirm`.
_ID_SHOWN = 8
_SUBJECTS = ("job_id", "policy", "node_id", "incarnation_id")
_WIDTHS = (20, 10, 16, 16, 15)


@click.command()
@SETTINGS.options("state_dir")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="json = a line each.")
@click.option("--from-sequence", type=click.IntRange(1, 2**63 - 1), default=1, help="Start at this event.")
def audit(settings: Settings, output: str, from_sequence: int) -> None:
    """Show who changed what, and from where: jobs, policies, nodes, restores; the scheduler may run meanwhile."""
    lines = deeds(read_stored_events(Path(settings.state_dir), from_sequence=from_sequence))
    # Before the headings: where there is no state nothing is listed.
    first = list(islice(lines, 1))
    if output == "table":
        click.echo(
            _row({"at": "AT", "role": "ROLE", "name": "NAME", "address": "FROM", "did": "DID", "about": "ABOUT"})
        )
    for line in chain(first, lines):
        click.echo(json.dumps(line) if output == "json" else _row(line))


def deeds(events: Iterator[StoredEvent]) -> Iterator[Mapping[str, str | int]]:
    """Yield what callers wanted, oldest first; the caller is "unknown" where it was not noted."""
    for stored in events:
        event = stored.event
        if not isinstance(event, CommandGiven):
            continue
        actor = event.actor or Actor()
        for subject in _subjects(event):
            yield {
                "sequence": stored.sequence,
                "at": datetime.fromtimestamp(event.at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "role": actor.role or UNKNOWN,
                "name": actor.name or UNKNOWN,
                "address": actor.address or UNKNOWN,
                "did": _deed(event),
                "about": subject,
            }


def _deed(event: CommandGiven) -> str:
    is_drain = isinstance(event, NodeCordoned) and event.is_draining
    return "drain node" if is_drain else _DEEDS[type(event)]


def _subjects(event: CommandGiven) -> Iterator[str]:
    """Yield what was changed, one or, where several things were changed at once, each."""
    if isinstance(event, JobSubmitted):
        yield event.request.job_id
    elif isinstance(event, TenantsChosen):
        yield "tenants"
    elif isinstance(event, UnknownAttemptsFound):
        for one in event.attempts:
            cluster = one.incarnation_id[:_ID_SHOWN] or UNKNOWN
            yield f"{one.job_id} attempt {one.attempt} of {cluster} on {event.node_id}"
    else:
        yield str(next((found for name in _SUBJECTS if (found := getattr(event, name, ""))), ""))


def _row(line: Mapping[str, str | int]) -> str:
    cells = [str(line[name]) for name in ("at", "role", "name", "address", "did")]
    padded = [cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)]
    return harmless("  ".join([*padded, str(line["about"])]).rstrip())
