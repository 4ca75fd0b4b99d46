"""What distinguishes the processes of a gang: the variables of torchrun, a core each on stand-in devices, a log each.

All ranks see all devices of the attempt on their node, in the order of their local ranks, as under torchrun: a script
chooses its own by LOCAL_RANK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotenant_agent.ranks.rendezvous_addresses import LOOPBACK
from cotenant_agent.records import DeviceBinding, GangPart, LaunchRequest

RANK_PROCESSES = "rank_processes"
"""In the words of the Hello: this agent starts jobs with ranks; an older one would start one process."""
SERVER_PROCESSES = "parameter_servers"
"""The same of parameter servers; an older one would start the ranks alone."""
SPREAD_SERVERS = "parameter_servers_across_nodes"
"""The same of those of a gang across nodes; an older one refuses its part."""
_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
LOCAL_DEFAULTS = dict.fromkeys(_INTERFACE_VARIABLES, "lo")
"""Of a gang on one node: its ranks talk over the loopback interface only. The job's own values come first."""
_LAUNCHER_PORT = "PET_MASTER_PORT"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
WORKER, SERVER = "worker", "server"
_OF_ALL_RANKS = frozenset({"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "COTENANT_WORLD_SIZE"})
"""Which variables of a rank a parameter server has as well."""
_LOG_BYTES_LEAST = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlan:
    """One process of a gang, as far as it differs from the others.

    Attributes:
        rank: In the whole gang.
        log: Name of the file of its output.
        cpu_cores: Where it runs; empty = anywhere.
        server: Its number among the parameter servers; None = it is none.
        argv: Its program and arguments; empty = those of the job.
    """

    rank: int
    log: str
    environment: Mapping[str, str]
    cpu_cores: tuple[int, ...] = ()
    server: int | None = None
    argv: tuple[str, ...] = ()

    def to_record(self) -> dict[str, object]:
        """As the attempt's spec.json keeps it for the shim."""
        return {
            "rank": self.rank,
            "log": self.log,
            "environment": dict(self.environment),
            **({"cpu_cores": list(self.cpu_cores)} if self.cpu_cores else {}),
            **({"server": self.server} if self.server is not None else {}),
            **({"argv": list(self.argv)} if self.argv else {}),
        }


def log_name(rank: int, *, first_rank: int = 0) -> str:
    """Name of the file of a rank's output; the first one of a node has that of a job without ranks."""
    return "out.log" if rank == first_rank else f"out.rank-{rank}.log"


def plan_ranks(request: LaunchRequest, bindings: Sequence[DeviceBinding], *, port: int) -> tuple[RankPlan, ...]:
    """The processes of a gang on this node in the order of their devices.

    Args:
        request: A job with ranks.
        bindings: Of each device alone.
        port: Where the ranks meet.
    """
    part = request.gang_part
    servers, servers_here = _servers_of(request)
    found = []
    for local_rank, binding in enumerate(bindings):
        rank = request.rank + local_rank
        own = {name: value for name, value in binding.environment.items() if name != _VISIBLE}
        variables = {
            "RANK": rank,
            "LOCAL_RANK": local_rank,
            "WORLD_SIZE": world_size(request),
            "LOCAL_WORLD_SIZE": len(bindings) + len(servers_here),
            "GROUP_RANK": 0 if part is None else part.group_rank,
            "MASTER_ADDR": LOOPBACK if part is None else part.master_address,
            "MASTER_PORT": port,
            "COTENANT_RANK": rank,
            "COTENANT_WORLD_SIZE": world_size(request),
            **(role_variables(request, WORKER, rank) if servers else {}),
        }
        environment = {**own, **{name: str(value) for name, value in variables.items()}}
        log = log_name(rank, first_rank=request.rank)
        found.append(RankPlan(rank=rank, log=log, environment=environment, cpu_cores=binding.cpu_cores or ()))
    return tuple(found)


def plan_servers(
    request: LaunchRequest, ranks: Sequence[RankPlan], argv: tuple[str, ...], *, port: int
) -> tuple[RankPlan, ...]:
    """The parameter servers of a gang on this node: the last ranks of its world, which see none of its devices.

    Args:
        request: A job with ranks.
        ranks: Those of this node, at least one.
        argv: Their program and arguments; empty = those of the ranks.
        port: Where all of them meet.
    """
    count, here = _servers_of(request)
    first = world_size(request) - count
    shared = {name: value for name, value in ranks[0].environment.items() if name in _OF_ALL_RANKS} if ranks else {}
    found = []
    for place, server in enumerate(here):
        variables = {
            "RANK": first + server,
            "LOCAL_RANK": len(ranks) + place,
            "MASTER_PORT": port,
            "COTENANT_RANK": first + server,
            **role_variables(request, SERVER, server),
        }
        environment = {**shared, **{name: str(value) for name, value in variables.items()}, _VISIBLE: ""}
        log = f"out.server-{server}.log"
        found.append(RankPlan(rank=first + server, log=log, environment=environment, server=server, argv=argv))
    return tuple(found)


def world_size(request: LaunchRequest) -> int:
    """How many processes a gang has on all nodes, parameter servers among them."""
    ranks = len(request.gpu_ids) if request.gang_part is None else request.gang_part.world_size
    return ranks + _servers_of(request)[0]


def _servers_of(request: LaunchRequest) -> tuple[int, range]:
    """Return how many parameter servers a job has, and which of them are on this node."""
    return (0, range(0)) if request.servers is None else (request.servers.count, request.servers.here)


def role_variables(request: LaunchRequest, role: str, role_rank: int) -> dict[str, object]:
    """What a process of a job with parameter servers is told of its part; the first ones are torchrun's."""
    servers = _servers_of(request)[0]
    return {
        "ROLE_NAME": role,
        "ROLE_RANK": role_rank,
        "ROLE_WORLD_SIZE": servers if role == SERVER else world_size(request) - servers,
        "GROUP_WORLD_SIZE": 1 if request.gang_part is None else request.gang_part.nodes,
        "COTENANT_ROLE": role,
        "COTENANT_SERVERS": servers,
    }


def defaults_of(request: LaunchRequest, *, port: int, interface: str = "") -> Mapping[str, str]:
    """Variables that the job's own win over: torchrun as the command meets at a port of its own, not at that of all.

    Args:
        request: The job.
        port: Where it meets.
        interface: By which other nodes reach this one; empty = not known.
    """
    meeting = {_LAUNCHER_PORT: str(port)}
    if request.gang_part is not None:
        told = {} if request.has_ranks else _launcher_variables(request, request.gang_part)
        return {**meeting, **told, **(dict.fromkeys(_INTERFACE_VARIABLES, interface) if interface else {})}
    return {**meeting, **(LOCAL_DEFAULTS if request.has_ranks else {})}


def _launcher_variables(request: LaunchRequest, part: GangPart) -> dict[str, str]:
    """Return what torchrun reads instead of its flags about nodes; it starts a rank per GPU of its node."""
    values = {
        "NNODES": part.nodes,
        "NODE_RANK": part.group_rank,
        "NPROC_PER_NODE": len(request.gpu_ids),
        "MASTER_ADDR": part.master_address,
    }
    return {f"PET_{name}": str(value) for name, value in values.items()}


def log_limit_bytes(limit_bytes: int, ranks: int) -> int:
    """How large each rank's log may grow, so that a gang keeps about as much as any job."""
    return min(limit_bytes, max(limit_bytes // max(ranks, 1), _LOG_BYTES_LEAST))
