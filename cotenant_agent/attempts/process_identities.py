"""The processes of an attempt out of the state.json that its shim has written."""

from __future__ import annotations

from cotenant_agent.processes import ProcessIdentity
from cotenant_agent.storage.durable_files import read_integer, read_text


def read_identity(record: dict[str, object], role: str) -> ProcessIdentity:
    """The process of one role: shim, job, init."""
    return ProcessIdentity(
        boot_id=read_text(record, "boot_id"),
        pid=read_integer(record, f"{role}_pid"),
        start_ticks=read_integer(record, f"{role}_start_ticks"),
    )


def read_rank_identities(record: dict[str, object]) -> tuple[ProcessIdentity, ...]:
    """The first processes of all ranks, those of parameter servers last."""
    found = record.get("ranks")
    return tuple(
        ProcessIdentity(
            boot_id=read_text(record, "boot_id"),
            pid=read_integer(rank, "pid"),
            start_ticks=read_integer(rank, "start_ticks"),
        )
        for rank in (found if isinstance(found, list) else [])
        if isinstance(rank, dict)
    )
