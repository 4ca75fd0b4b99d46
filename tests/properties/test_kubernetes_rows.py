"""Whatever an API server answers about nodes and pods, it is read, and no GPU is given out beyond what it has."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.kubernetes.reading import KubernetesReading
from cotenant.engines.kubernetes.volumes import Volumes
from cotenant.engines.records import EnginePhase, EngineState
from cotenant.engines.snapshots import make_snapshot
from tests.support.fake_kubernetes import node_row, pod_row

DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * 2**30)]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ODD = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner))
NAMES = st.sampled_from(["n1", "n2", "a", "b", ""])
NOTES = st.builds(
    "cotenant placed {}/{} {}: x".format,
    NAMES,
    st.sampled_from(["g0", "g1", "0", "9"]),
    st.sampled_from(["whole", "0", "1", "60", "100", "101", "999999", "-5", "x"]),
)


def maybe(usual: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return mostly what is usual, at times anything else."""
    return st.one_of(usual, usual, usual, ODD)


def rows(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return maybe(st.fixed_dictionaries({}, optional={name: maybe(usual) for name, usual in fields.items()}))


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "pods", "nvidia.com/gpu", "rdma/hca"]),
    maybe(st.sampled_from(["1", "4", "500m", "64Gi", "-1", "1e99"])),
)
LABELS = st.fixed_dictionaries(
    {},
    optional={
        "cotenant.io/gpus": st.just("placed"),
        "nvidia.com/gpu.count": st.sampled_from(["1", "2", "1e9", "x"]),
        "nvidia.com/gpu.replicas": st.sampled_from(["1", "4", "-1"]),
    },
)
NODES = rows(
    metadata=st.fixed_dictionaries(
        {"name": NAMES, "labels": LABELS, "annotations": st.just({"cotenant.io/gpu-uuids": "g0,g1"}) | ODD}
    ),
    spec=rows(unschedulable=st.booleans(), taints=st.lists(rows(key=NAMES, effect=st.just("NoSchedule")), max_size=2)),
    status=rows(allocatable=AMOUNTS, conditions=st.just([{"type": "Ready", "status": "True"}])),
)
PODS = rows(
    metadata=st.fixed_dictionaries(
        {"name": NAMES, "namespace": NAMES},
        optional={
            "annotations": st.fixed_dictionaries({"cotenant.io/job": SCALARS}, optional={"cotenant.io/note": NOTES}),
            "creationTimestamp": SCALARS,
            "deletionTimestamp": SCALARS,
        },
    ),
    spec=rows(
        schedulerName=st.just("cotenant"),
        nodeName=NAMES,
        containers=st.lists(rows(resources=st.fixed_dictionaries({"requests": AMOUNTS})), max_size=2),
        schedulingGates=st.just([]),
        affinity=ODD,
        tolerations=st.lists(ODD, max_size=2),
        nodeSelector=st.dictionaries(NAMES, NAMES, max_size=1),
    ),
    status=rows(phase=st.sampled_from(["Pending", "Running", "Failed"]), startTime=SCALARS),
)


def read(nodes: list[Any], pods: list[Any]) -> EngineState:
    return KubernetesReading(
        [row for row in nodes if isinstance(row, dict)],
        [row for row in pods if isinstance(row, dict)],
        DEVICES,
        Volumes(),
    ).state()


@given(st.lists(NODES, max_size=3), st.lists(PODS, max_size=5))
def test_any_rows_are_read_and_can_be_asked_about(nodes: list[Any], pods: list[Any]) -> None:
    state = read(nodes, pods)
    make_snapshot(state, [job for job in state.jobs if job.phase is EnginePhase.HELD], now_ms=1)


@given(st.lists(st.tuples(st.sampled_from(["", "n1", "n2"]), NOTES | st.just("")), max_size=6))
def test_notes_of_pods_that_wait_never_overfill_a_gpu(written: list[tuple[str, str]]) -> None:
    pods = [pod_row(f"p{number}", "") for number in range(len(written))]
    for pod, (node, note) in zip(pods, written, strict=True):
        pod["metadata"]["annotations"]["cotenant.io/note"] = note
        pod["spec"] |= {"nodeName": node} if node else {}
    state = read([node_row("n1"), node_row("n2")], pods)
    whole = {gpu_id: max(gpu.slots, 1) for gpu_id, gpu in state.gpus.items()}
    bound, given_out = Counter[str](), Counter[str]()
    for job in state.jobs:
        for gpu_id, slots in job.held_slots.items():
            (given_out if job.phase is EnginePhase.INTERRUPTED else bound)[gpu_id] += slots or whole[gpu_id]
    assert all(bound[gpu_id] + count <= whole[gpu_id] for gpu_id, count in given_out.items())
