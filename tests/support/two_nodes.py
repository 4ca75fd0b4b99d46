"""A scheduler and two agents on this machine, with one folder of checkpoints or two: each process can be killed."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cotenant.v1 import scheduling_pb2
from tests.support.gang_cluster import GangCluster
from tests.support.live_cluster import SHORT_TIMES, live_cluster
from tests.support.scheduler_process import wait_until

NODES = ("node-a", "node-b")


@dataclass
class TwoNodes(GangCluster):
    """One stand-in device on each node, which is a core of this machine."""

    flags: Sequence[str] = ("--shared-checkpoints",)
    has_one_folder: bool = True

    def start_node(self, node_id: str) -> None:
        """Start the agent of a node on its own state directory."""
        cores = sorted(os.sched_getaffinity(0))
        core = str(cores[NODES.index(node_id) % len(cores)])
        folder = ("--checkpoint-dir", str(self.folder / "checkpoints")) if self.has_one_folder else ()
        flags = ("--node-id", node_id, *folder, *self.flags)
        self.start_agent(node_id, "--allow-any-command", *flags, devices=("--standin-cores", core))

    def start_agents(self) -> None:
        """Start both and wait until they have joined."""
        for node_id in NODES:
            self.start_node(node_id)
        nodes = scheduling_pb2.ListNodesRequest()
        wait_until(lambda: len(self.client.stub.ListNodes(nodes).nodes) == len(NODES), what="both nodes have joined")

    def submit(self, *command: str, **fields: object) -> str:
        """Hand in a gang of two across the nodes, unless the fields say otherwise."""
        return super().submit(*command, **{"gpus": 2, "ranks": 2, "across_nodes": True, **fields})

    def kill_agent(self, generator: random.Random) -> None:
        """Kill one of the agents, and start it again."""
        node_id = generator.choice(NODES)
        self.agents[node_id].kill()
        self.start_node(node_id)


@contextmanager
def two_nodes(
    folder: Path, *scheduler_flags: str, flags: Sequence[str] = ("--shared-checkpoints",), has_one_folder: bool = True
) -> Iterator[TwoNodes]:
    """Run them; afterwards they and all their jobs are gone."""
    arguments = ("--policy", "fifo", *SHORT_TIMES, *scheduler_flags)
    kind = partial(TwoNodes, flags=flags, has_one_folder=has_one_folder)
    with live_cluster(kind, folder, NODES, arguments) as cluster:
        cluster.start_agents()
        yield cluster


def separate_nodes(folder: Path, *scheduler_flags: str) -> AbstractContextManager[TwoNodes]:
    """Run them where each agent keeps its checkpoints in its own state directory."""
    return two_nodes(folder, *scheduler_flags, flags=(), has_one_folder=False)
