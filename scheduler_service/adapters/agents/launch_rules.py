"""What connected nodes may run, compared with what a job asks for: by name only, the node has the last word."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import join, normpath

from cotenant.counted_nouns import agreed
from cotenant.v1 import node_agent_pb2, scheduling_pb2
from scheduler_service.core.cluster_view.inventory import is_slice, kind_of
from scheduler_service.core.cluster_view.spanning import checkpoint_pool
from scheduler_service.core.queue.queue_terms import is_device_named
from scheduler_service.core.records import Node

PATHS_MAX = 2_000
PATH_CHARACTERS_MAX = 4_096
PATTERNS_MAX = 200
PATTERN_CHARACTERS_MAX = 128
"""What is kept of one node; a node that lists more is taken as one that lists nothing."""
RANK_PROCESSES = "rank_processes"
"""What an agent that starts jobs with ranks says of its node."""
SERVER_PROCESSES = "parameter_servers"
"""What an agent says of its node that starts parameter servers."""
SPREAD_SERVERS = "parameter_servers_across_nodes"
"""The same of a gang across nodes, each of which starts some of them."""
_SHOWN_MAX = 5
_SHOWN_CHARACTERS_MAX = 200
_AGENT = "python -m cotenant_agent run"
_UNLESS = ", or let it span nodes (--across-nodes)"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a node cannot run a job, to be read after the node's name, and what would help."""

    finding: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRules:
    """What one node runs.

    Attributes:
        any_command: Any executable and any environment; directories are listed all the same.
        executables: Paths.
        directories: Roots of working directories.
        environment: Matches the names of allowed variables.
    """

    any_command: bool
    executables: AbstractSet[str]
    directories: tuple[str, ...]
    environment: re.Pattern[str]

    def obstacles(self, spec: scheduling_pb2.JobSpec) -> Iterator[Obstacle]:
        """Return what of a job's command and environment this node does not run."""
        if self.any_command:
            return
        programs = [command[0] for command in (spec.command, spec.servers.command) if command]
        for name in [name for name in dict.fromkeys(programs) if not self._lists(spec, name)]:
            finding = f"runs {_some(self.executables)}, not {name[:_SHOWN_CHARACTERS_MAX]!r}"
            yield Obstacle(finding, f"let the node's owner add it ({_AGENT} --allow-executable)")
        refused = [name for name in sorted(spec.environment) if not self.environment.fullmatch(name)]
        if refused:
            finding = f"does not take the variables {_some(refused)}"
            yield Obstacle(finding, f"let the node's owner add them ({_AGENT} --allow-environment)")

    def _lists(self, spec: scheduling_pb2.JobSpec, name: str) -> bool:
        if "/" not in name:
            return any(PurePosixPath(path).name == name for path in self.executables)
        return normpath(join(spec.working_directory or "/", name)) in self.executables

    def lists_directory(self, path: str) -> bool:
        """Return whether a working directory lies in a listed one by name; a link may lead in or out all the same."""
        wanted = PurePosixPath(normpath(path))
        return not path or any(wanted.is_relative_to(normpath(root)) for root in self.directories)


def launch_rules(hello: node_agent_pb2.Hello) -> LaunchRules | None:
    """Read what a node runs; None = not stated, or too much."""
    rules = hello.launch_rules
    paths = [*rules.executables, *rules.directories]
    if not hello.HasField("launch_rules") or _is_too_much(paths, PATHS_MAX, PATH_CHARACTERS_MAX):
        return None
    # Their expression is compiled and matched while agents and users wait.
    if _is_too_much(rules.environment_patterns, PATTERNS_MAX, PATTERN_CHARACTERS_MAX):
        return None
    # An empty list matches nothing.
    patterns = "|".join(fnmatch.translate(pattern) for pattern in rules.environment_patterns) or "(?!)"
    try:
        environment = re.compile(patterns)
    except (re.error, RecursionError, OverflowError):
        return None
    return LaunchRules(
        any_command=rules.any_command,
        executables=frozenset(rules.executables),
        directories=tuple(rules.directories),
        environment=environment,
    )


def _is_too_much(names: Sequence[str], count_max: int, characters_max: int) -> bool:
    return len(names) > count_max or any(len(name) > characters_max for name in names)


def node_obstacles(node: Node, rules: LaunchRules | None, spec: scheduling_pb2.JobSpec) -> Iterator[Obstacle]:
    """Return why a node cannot run a job, whatever else happens there; nothing = it may."""
    wanted, names = gpus_at_least(spec), tuple(sorted(spec.allowed_devices))
    if node.gpus and names and not any(is_device_named(names, gpu.device) for gpu in node.gpus):
        finding = f"has {_some({gpu.device for gpu in node.gpus})}, not {_some(names)}"
        yield Obstacle(finding, "name a type with --device that `cotenant gpus` lists, or leave it out")
    # One GPU is of one kind: nothing needs to be counted for most jobs, and a submission looks at every node.
    most = 1 if wanted == 1 and node.gpus else gpus_of_one_kind(node)
    if spec.across_nodes:
        yield from _spanning_obstacles(node)
    elif wanted > most:
        flag = "--ranks" if spec.ranks else "--gpus"
        remedy = f"ask for fewer {flag}, since all GPUs of a job are on one node{_UNLESS if spec.ranks else ''}"
        slices = sum(map(is_slice, node.gpus))
        parts = f", since of {slices} slice(s) of GPUs (MIG) a process can use one" if slices else ""
        yield Obstacle(agreed(f"has {most} GPU(s) of one kind, not {wanted}{parts}"), remedy)
    if spec.ranks and RANK_PROCESSES not in node.enforcements:
        yield Obstacle("has an agent that starts no ranks", "let the node's owner upgrade it, or leave out --ranks")
    if spec.HasField("servers") and SERVER_PROCESSES not in node.enforcements:
        remedy = "let the node's owner upgrade it, or leave out --servers"
        yield Obstacle("has an agent that starts no parameter servers", remedy)
    elif spec.HasField("servers") and spec.across_nodes and SPREAD_SERVERS not in node.enforcements:
        remedy = "let the node's owner upgrade it, or leave out --across-nodes or --servers"
        yield Obstacle("has an agent that starts parameter servers only where all ranks are on its node", remedy)
    if rules is not None:
        yield from rules.obstacles(spec)


def _spanning_obstacles(node: Node) -> Iterator[Obstacle]:
    if not node.rendezvous_address:
        yield Obstacle("says no address for ranks on other nodes", f"start its agent with {_AGENT} --rendezvous-host")
    if not checkpoint_pool(node):
        remedy = (
            f"upgrade its agent, start it with more than 0 as {_AGENT} --transfer-limit-bytes, start two or more on "
            "one shared folder (--checkpoint-dir DIRECTORY --shared-checkpoints), or leave --across-nodes out"
        )
        yield Obstacle("neither shares checkpoints with other nodes nor sends them", remedy)


def gpus_together(nodes: Iterable[Node]) -> int:
    """Return how many GPUs of one kind the nodes have together that can go on from each other's checkpoints."""
    counts = Counter((checkpoint_pool(node), kind_of(gpu)) for node in nodes for gpu in node.gpus)
    return max(counts.values(), default=0)


def gpus_at_least(spec: scheduling_pb2.JobSpec) -> int:
    """Return the smallest number of GPUs that a job may be given."""
    return min(spec.allowed_gpus, default=spec.gpus or 1)


def gpus_of_one_kind(node: Node) -> int:
    """Return how many GPUs of one kind a node can give a job, whether they are healthy now or not."""
    return max(Counter(map(kind_of, node.gpus)).values(), default=0)


def _some(names: Collection[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN_MAX} more" if len(ordered) > _SHOWN_MAX else ""
    return (", ".join(name[:_SHOWN_CHARACTERS_MAX] for name in ordered[:_SHOWN_MAX]) or "nothing") + more
