"""Which attempts the agent lets stand still, and for how long."""

from __future__ import annotations

from collections.abc import Iterable

from cotenant_agent.attempts.attempt import Attempt
from cotenant_agent.errors import CommandRefusedError
from cotenant_agent.keeper.job_pausing import PAUSED_MS_MAX
from cotenant_agent.records import AttemptKey, AttemptState
from cotenant_agent.storage.durable_files import read_integer, write_json
from cotenant_agent.system_clock import boot_ms

NOT_PAUSABLE = "NOT_PAUSABLE"
"""Code of every refusal to pause: the scheduler then stops the job with a checkpoint instead."""
_CAUSE_LIMIT = 100


def pause_obstacle(attempt: Attempt, paused_ms_max: int) -> str:
    """Why an attempt cannot be paused; empty = it can.

    All its processes stand still together, those of several devices and the ranks of a gang as well: its keeper holds
    one tree, and a collective of the frameworks waits for minutes. Parts on other nodes are told by the scheduler.
    """
    if not 1 <= paused_ms_max <= PAUSED_MS_MAX:
        return f"a pause lasts 1 to {PAUSED_MS_MAX} ms, not {paused_ms_max}"
    if not attempt.can_pause:
        return "an older agent started it, whose shim cannot pause; it can from its next attempt on"
    return "MPS serves its device, and a client that stands still may hold up the others" if attempt.uses_mps else ""


def longest_pause_ms(attempt: Attempt, paused_ms_max: int) -> int:
    """How long a pause may last: no rank may give up waiting for another one that woke up a little later."""
    half_ms = attempt.collective_timeout_ms // 2 - 1
    return min(paused_ms_max, max(half_ms, 1)) if attempt.collective_timeout_ms > 0 else paused_ms_max


def order_pause(attempt: Attempt, cause: str, paused_ms_max: int) -> None:
    """Ask the shim to let an attempt stand still; one that is ending is left as it is, and no pause grows.

    Raises:
        CommandRefusedError: NOT_PAUSABLE: it runs on.
    """
    if attempt.state in (AttemptState.STOPPING, AttemptState.ENDED):
        return
    obstacle = pause_obstacle(attempt, paused_ms_max)
    if obstacle:
        raise CommandRefusedError(NOT_PAUSABLE, f"{attempt.key.directory_name} cannot be paused: {obstacle}")
    now_ms = boot_ms()
    until_ms = now_ms + longest_pause_ms(attempt, paused_ms_max)
    known_ms = read_integer(attempt.read(attempt.directory.pause), "until_boot_ms")
    if now_ms < known_ms <= until_ms and not attempt.pause.failure:
        return
    try:
        order: dict[str, object] = {"until_boot_ms": until_ms, "cause": cause[:_CAUSE_LIMIT]}
        write_json(attempt.directory.pause, attempt.sealed(attempt.directory.pause, order))
    except OSError as error:
        raise CommandRefusedError(NOT_PAUSABLE, f"this node cannot store the order: {error}") from error


def find_failed_pauses(attempts: Iterable[Attempt]) -> list[tuple[AttemptKey, str]]:
    """Attempts that could not be made to stand still, and why; each is named once per order."""
    found = []
    for attempt in attempts:
        failure = attempt.pause.failure
        if failure:
            attempt.directory.pause.unlink(missing_ok=True)
            found.append((attempt.key, failure))
    return found
