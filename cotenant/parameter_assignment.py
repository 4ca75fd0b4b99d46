"""Which parameter server holds which block of a model: PAA, so that bytes and requests are balanced.

Source:
    Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", section 5.3 and
    Algorithm 2. The listing adds sizes that it has already reduced and remembers the last slice of a block only; here
    slices keep their sizes and every slice has its place. A block that fits nowhere goes where fewest parameters are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

BLOCKS_MAX = 4_096
BLOCK_NAMES_BYTES_MAX = 131_072
SMALL_RATIO = 0.01
"""Blocks below this part of the average size count by their request only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A block, or a part of one, on a server."""

    block: str
    parameters: int
    server: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterAssignment:
    """Where everything is.

    Attributes:
        slices: All of them, in the order in which they were assigned.
        parameters: By server.
        requests: Slices by server; each is one request of every worker in every step.
    """

    slices: tuple[Slice, ...]
    parameters: tuple[int, ...]
    requests: tuple[int, ...]

    def places(self) -> dict[str, list[dict[str, int]]]:
        """Return by block which parameters of it are on which server: the slices of a block follow each other."""
        found: dict[str, list[dict[str, int]]] = {}
        for one in self.slices:
            before = found.setdefault(one.block, [])
            offset = before[-1]["offset"] + before[-1]["parameters"] if before else 0
            before.append({"server": one.server, "offset": offset, "parameters": one.parameters})
        return found


def assign_parameters(blocks: Mapping[str, int], servers: int) -> ParameterAssignment:
    """Distribute blocks over parameter servers.

    Args:
        blocks: Parameters of each block by its name.
        servers: At least 1.

    Raises:
        ValueError: There is no server, or a block without parameters.
    """
    if servers < 1 or any(size < 1 for size in blocks.values()):
        raise ValueError("parameters need at least one server and blocks of at least one parameter")
    average = sum(blocks.values()) / servers
    most = max(-(-sum(blocks.values()) // servers), 1)
    parameters, requests = [0] * servers, [0] * servers
    slices = []
    queue = [(-size, name) for name, size in blocks.items()]
    heapify(queue)
    while queue:
        size, name = heappop(queue)
        part = min(-size, most)
        if part < -size:
            server = parameters.index(min(parameters))
            heappush(queue, (size + part, name))
        elif part < average * SMALL_RATIO:
            server = min(range(servers), key=lambda one: (requests[one], parameters[one]))
        else:
            server = _best_fit(parameters, average, part)
        parameters[server] += part
        requests[server] += 1
        slices.append(Slice(block=name, parameters=part, server=server))
    return ParameterAssignment(slices=tuple(slices), parameters=tuple(parameters), requests=tuple(requests))


def _best_fit(parameters: list[int], average: float, part: int) -> int:
    """Return the server with the least room that still suffices; when none does, the one with fewest parameters."""
    fitting = [server for server, held in enumerate(parameters) if held + part <= average]
    if fitting:
        return min(fitting, key=lambda server: (-parameters[server], server))
    return parameters.index(min(parameters))
