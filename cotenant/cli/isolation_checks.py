"""By what jobs are kept apart, on this machine and on the nodes: what is missing, and what holds in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cotenant.cli.findings import Finding
from cotenant.v1 import scheduling_pb2

_NAMED_MAX: Final = 5
_JOB_USERS: Final = ("COTENANT_AGENT_JOB_USERS", "COTENANT_AGENT_JOB_USER")
_NAMESPACES, _KILL, _FREEZER, _PAUSES_BY_SIGNAL = "pid_namespace", "cgroup_kill", "cgroup_freezer", "stop_signal"
# Word of a node's Hello -> what happens without it.
_WITHOUT: Final[Mapping[str, str]] = {
    _NAMESPACES: "jobs see and signal each other's processes",
    _KILL: "processes that escape from a job are looked for one by one",
    _FREEZER: "jobs are paused by SIGSTOP",
}


def check_local_isolation(probe: Mapping[str, Any]) -> Iterator[Finding]:
    """Judges what an agent of this account would find here.

    Args:
        probe: As `python -m cotenant_agent probe -o json` prints it.
    """
    words = set(probe.get("enforcements", ()))
    obstacle = str(probe.get("no_namespaces") or "")
    if obstacle:
        remedy = (
            "start the agent as root outside of a container, or permit user namespaces "
            "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone); docs/security.md has what holds"
        )
        found = f"refused ({obstacle}): {_WITHOUT[_NAMESPACES]}; their state files are sealed instead"
        yield Finding(check="namespaces", state="warning", found=found, remedy=remedy)
    missing = [_KILL] * (_KILL not in words) + [_FREEZER] * (_PAUSES_BY_SIGNAL in words)
    if missing:
        found = "; ".join(f"no {word}: {_WITHOUT[word]}" for word in missing)
        remedy = "give the agent control groups of version 2: as root, or a systemd service with Delegate=yes"
        yield Finding(check="control groups", state="warning", found=found, remedy=remedy)
    if probe.get("is_root") and not any(os.environ.get(name) for name in _JOB_USERS):
        found = "this account is root: an agent that it starts runs jobs as root, unless told otherwise"
        remedy = "python -m cotenant_agent run --job-users 200000-200999 ..., or start the agent as an ordinary user"
        yield Finding(check="job users", state="warning", found=found, remedy=remedy)


def check_node_isolation(nodes: Sequence[scheduling_pb2.Node]) -> Iterator[Finding]:
    """Names the connected nodes that lack something, in one finding."""
    lacking = {
        _NAMESPACES: [node.node_id for node in nodes if _NAMESPACES not in node.enforcements],
        _KILL: [node.node_id for node in nodes if _KILL not in node.enforcements],
        _FREEZER: [node.node_id for node in nodes if _PAUSES_BY_SIGNAL in node.enforcements],
    }
    texts = [f"without {word}: {_named(names)}" for word, names in lacking.items() if names]
    if texts:
        remedy = "run `cotenant doctor` on the node: it says what is refused there, and what to do"
        yield Finding(check="node limits", state="warning", found="; ".join(texts), remedy=remedy)


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
