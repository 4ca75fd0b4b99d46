"""Ray itself: the only module of the base that imports it, and only when a cluster is connected to."""

from __future__ import annotations

import contextlib
import importlib
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from cotenant.engines.errors import EngineUnreachableError
from cotenant.engines.ray.job_records import GPU, NAMESPACE, GpuRecord, decode, encode
from cotenant.engines.ray.tables import ClaimedGpu, RayNode
from cotenant.errors import InputError

GROUP_NAME: Final = "cotenant-gpu-"
GROUPS_PER_ROUND_MAX: Final = 64
PROBE_GPU_RATIO: Final = 0.01
PROBE_TIMEOUT_S: Final = 60.0
_REMEDY: Final = "see that `ray status` answers on this machine, or name the cluster's address"


def import_ray() -> Any:  # noqa: ANN401 (Ray's own module, which is not installed everywhere)
    """Return Ray's package.

    Raises:
        InputError: It is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise InputError("Ray is not installed here", remedy="pip install 'cotenant[ray]'") from error


class ConnectedRay:
    """A `RayTables` over a Ray cluster to which this process is connected.

    Attributes:
        ray: Ray's own package.
    """

    def __init__(self) -> None:
        self.ray = import_ray()
        self._kv = importlib.import_module("ray.experimental.internal_kv")
        self._connection = _connection_of(self.ray)

    @classmethod
    def connect(cls, address: str) -> ConnectedRay:
        """Connect this process.

        Args:
            address: HOST:PORT of the head, or auto.

        Raises:
            EngineUnreachableError: No cluster answers there.
        """
        ray = import_ray()
        with answering(f"no Ray cluster at {address}"):
            ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        return cls()

    @classmethod
    def joined(cls) -> ConnectedRay:
        """Take the connection that this process has.

        Raises:
            InputError: It has none.
        """
        if not import_ray().is_initialized():
            raise InputError("this process is not connected to Ray", remedy="call ray.init(address='auto') first")
        return cls()

    def is_current(self) -> bool:
        """Say whether this process is still connected to the same cluster by the same connection."""
        return bool(self.ray.is_initialized()) and self._connection == _connection_of(self.ray)

    @contextmanager
    def held_open(self) -> Iterator[bool]:
        """Let `ray.shutdown()` of other threads wait meanwhile; yields what `is_current` says.

        Ray ends the whole process at once when a thread asks it anything behind a shutdown.
        """
        worker = importlib.import_module("ray._private.worker")
        with getattr(worker, "_connect_or_shutdown_lock", contextlib.nullcontext()):
            yield self.is_current()

    def close(self) -> None:
        """Leave the cluster; what was claimed stays."""
        self.ray.shutdown()

    def read_all(self, prefix: str) -> dict[str, bytes]:
        """See `RayTables.read_all`."""
        with answering("Ray's key-value store does not answer"):
            names = [key.decode() for key in self._kv._internal_kv_list(prefix, namespace=NAMESPACE)]
            found = {name: self._kv._internal_kv_get(name, namespace=NAMESPACE) for name in names}
        # One that was removed in between has no value.
        return {name.removeprefix(prefix): value for name, value in found.items() if value is not None}

    def read(self, key: str) -> bytes | None:
        """See `RayTables.read`."""
        with answering("Ray's key-value store does not answer"):
            value: bytes | None = self._kv._internal_kv_get(key, namespace=NAMESPACE)
            return value

    def write(self, key: str, value: bytes) -> None:
        """See `RayTables.write`."""
        with answering("Ray's key-value store does not answer"):
            self._kv._internal_kv_put(key, value, overwrite=True, namespace=NAMESPACE)

    def remove(self, key: str) -> None:
        """See `RayTables.remove`."""
        with answering("Ray's key-value store does not answer"):
            self._kv._internal_kv_del(key, namespace=NAMESPACE)

    def living_jobs(self) -> frozenset[str]:
        """See `RayTables.living_jobs`."""
        with answering("Ray does not list its actors"):
            actors = self.ray.util.list_named_actors(all_namespaces=True)
        return frozenset(str(actor["name"]) for actor in actors if actor["namespace"] == NAMESPACE)

    def nodes(self) -> list[RayNode]:
        """See `RayTables.nodes`."""
        return [
            RayNode(
                node_hex=str(row["NodeID"]),
                cpu_cores=float(row["Resources"].get("CPU", 0.0)),
                memory_bytes=int(row["Resources"].get("memory", 0)),
            )
            for row in self._living_rows()
        ]

    def claimed_gpus(self) -> list[ClaimedGpu]:
        """See `RayTables.claimed_gpus`."""
        found = []
        for group_id, group in self._groups().items():
            known = decode(GpuRecord, self.read(GPU + group_id))
            # Ray moves a group whose node has died; then its GPU is another one.
            if known.node_hex and known.node_hex == _node_of(group):
                found.append(ClaimedGpu(group_id=group_id, **_fields(known)))
        return sorted(found, key=lambda gpu: gpu.gpu_id)

    def claim_gpus(self) -> int:
        """Have a placement group made for each GPU of the cluster, and look which GPU each one stands on.

        GPUs that others use are taken when Ray has them back: returned is how many those were at the last look. What is
        there already is left as it is.
        """
        groups = self._groups()
        gpus = sum(int(row["Resources"].get("GPU", 0)) for row in self._living_rows())
        waiting = [group_id for group_id, group in groups.items() if group["state"] != "CREATED"]
        with answering("Ray makes no placement group"):
            for _ in range(min(gpus - len(groups), GROUPS_PER_ROUND_MAX)):
                self.ray.util.placement_group(
                    [{"GPU": 1}], name=f"{GROUP_NAME}{secrets.token_hex(4)}", lifetime="detached"
                )
            removed = waiting[: max(len(groups) - gpus, 0)]
            for group_id in removed:
                self.ray.util.remove_placement_group(self.group(group_id))
        self._identify()
        return len(waiting) - len(removed)

    def give_back(self, group_id: str) -> None:
        """Remove the placement group of a GPU; Ray ends what runs in it."""
        with answering("Ray removes no placement group"):
            self.ray.util.remove_placement_group(self.group(group_id))
        self.remove(GPU + group_id)

    def group(self, group_id: str) -> Any:  # noqa: ANN401 (Ray's own class)
        """Return Ray's handle of a placement group."""
        groups = importlib.import_module("ray.util.placement_group")
        return groups.PlacementGroup(self.ray.PlacementGroupID(bytes.fromhex(group_id)))

    def options_on(self, group_id: str, gpu_ratio: float) -> dict[str, Any]:
        """Return the options with which a task or actor runs on that GPU.

        Args:
            group_id: Placement group of the GPU.
            gpu_ratio: Part of the GPU, above 0 to 1, as Ray accounts for it.
        """
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        strategy = strategies.PlacementGroupSchedulingStrategy(self.group(group_id), placement_group_bundle_index=0)
        return {"num_cpus": 0, "num_gpus": gpu_ratio, "scheduling_strategy": strategy}

    def _identify(self) -> None:
        """Ask a task in each new group on which GPU it is."""
        groups = {group_id: group for group_id, group in self._groups().items() if group["state"] == "CREATED"}
        known = {gpu.group_id for gpu in self.claimed_gpus()}
        with answering("Ray starts no task in a placement group"):
            probe = self.ray.remote(max_retries=0)(seen_gpu)
            asked = {
                group_id: probe.options(**self.options_on(group_id, PROBE_GPU_RATIO)).remote()
                for group_id in groups.keys() - known
            }
            if asked:
                self.ray.wait([*asked.values()], num_returns=len(asked), timeout=PROBE_TIMEOUT_S)
        names = _Names(self._living_rows(), self._known_gpus())
        for group_id, reference in asked.items():
            try:
                node_hex, gpu_index = self.ray.get(reference, timeout=0)
            except Exception as error:
                logging.getLogger(__name__).debug("no answer from placement group %s: %s", group_id, error)
                # The next round asks anew: one question at a time waits in a group.
                with contextlib.suppress(Exception):
                    self.ray.cancel(reference, force=True)
                continue
            record = GpuRecord(node_hex=node_hex, node_id=names.of(node_hex), gpu_index=gpu_index)
            self.write(GPU + group_id, encode(record))

    def _known_gpus(self) -> list[GpuRecord]:
        return [decode(GpuRecord, data) for data in self.read_all(GPU).values()]

    def _groups(self) -> dict[str, Mapping[str, Any]]:
        with answering("Ray does not list its placement groups"):
            table = self.ray.util.placement_group_table()
        return {
            str(group["placement_group_id"]): group
            for group in table.values()
            if str(group["name"]).startswith(GROUP_NAME) and group["state"] != "REMOVED"
        }

    def _living_rows(self) -> list[Mapping[str, Any]]:
        with answering("Ray does not list its nodes"):
            return [row for row in self.ray.nodes() if row["Alive"]]


def _connection_of(ray: Any) -> str:  # noqa: ANN401 (Ray's own module)
    return str(ray.get_runtime_context().get_worker_id()) if ray.is_initialized() else ""


def seen_gpu() -> tuple[str, str]:
    """Return the node on which this task or actor runs and its GPU as CUDA_VISIBLE_DEVICES names it, as Ray says."""
    ray = import_ray()
    gpu_ids = ray.get_gpu_ids()
    return str(ray.get_runtime_context().get_node_id()), str(gpu_ids[0]) if gpu_ids else ""


class _Names:
    """Names of nodes, each for one node only and for ever, as notes in jobs name GPUs by them."""

    def __init__(self, rows: list[Mapping[str, Any]], known: list[GpuRecord]) -> None:
        self._rows = {str(row["NodeID"]): row for row in rows}
        self._given = {gpu.node_hex: gpu.node_id for gpu in known}

    def of(self, node_hex: str) -> str:
        """Return the name of a node: Ray's, with a part of its number where another node has it."""
        if node_hex not in self._given:
            row = self._rows.get(node_hex, {})
            name = str(row.get("NodeName") or row.get("NodeManagerHostname") or "node").replace(" ", "-")
            self._given[node_hex] = f"{name}-{node_hex[:8]}" if name in self._given.values() else name
        return self._given[node_hex]


def _fields(record: GpuRecord) -> dict[str, str]:
    return {"node_hex": record.node_hex, "node_id": record.node_id, "gpu_index": record.gpu_index}


def _node_of(group: Mapping[str, Any]) -> str:
    return str(group["bundles_to_node_id"].get(0, "")) if group["state"] == "CREATED" else ""


@contextmanager
def answering(what: str) -> Iterator[None]:
    """Translate whatever Ray raises."""
    try:
        yield
    except Exception as error:
        shown = " ".join(str(error).split())[:300]
        raise EngineUnreachableError(f"{what}: {shown}", remedy=_REMEDY) from error
