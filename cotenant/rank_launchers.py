"""Launchers as the command of a job, which start its ranks themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

SPANNING_LAUNCHER = "torchrun"
"""It takes the nodes of a gang, their order and where they meet from variables that each node sets."""
_SET_BY_NODES = frozenset(
    {"nnodes", "node_rank", "master_addr", "master_port", "standalone", "rdzv_endpoint", "rdzv_backend", "rdzv_id"}
)


def spans_nodes(command: Sequence[str]) -> bool:
    """Tell whether a command starts ranks on several nodes without being one of them."""
    return bool(command) and PurePosixPath(command[0]).name == SPANNING_LAUNCHER


def flags_of_nodes(command: Sequence[str]) -> list[str]:
    """Returns the launcher's own flags that would contradict what the nodes set; those of the script are its own."""
    return [word for word in _own_flags(command) if _name_of(word) in _SET_BY_NODES]


def _own_flags(command: Sequence[str]) -> Iterator[str]:
    for word in command[1:]:
        if word.endswith(".py") or _name_of(word) in {"m", "module", "no_python"}:
            return
        if word.startswith("-"):
            yield word.partition("=")[0]


def _name_of(flag: str) -> str:
    return flag.partition("=")[0].lstrip("-").replace("-", "_")
