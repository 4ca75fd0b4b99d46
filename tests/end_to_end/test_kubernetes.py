"""Beside a real control plane (1.20.2) with fake nodes: which pod runs where, what is left alone and what forbidden."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.engines.bridge import Bridge, RoundReport
from cotenant.engines.device_rules import DeviceRule
from cotenant.engines.errors import EngineRefusedError, EngineUnreachableError
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.api import ServedApi
from cotenant.engines.kubernetes.device_taints import make_rule
from cotenant.engines.kubernetes.extender import Extender
from cotenant.engines.kubernetes.extender_server import ExtenderServer
from cotenant.engines.kubernetes.resource_claims import make_claim
from cotenant.v1 import scheduling_pb2
from scheduler_service.grpc_api.snapshots.decide import decide
from tests.support import kubernetes_exchanges
from tests.support.control_plane import ControlPlane, missing_parts, wait_until
from tests.support.fake_kubelets import FakeKubelets
from tests.support.fake_kubernetes import node_row, plugin_node, pod_row

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.alone,
    pytest.mark.skipif(bool(missing_parts()), reason=f"not here: {', '.join(missing_parts())}"),
    pytest.mark.timeout(300),
]

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "deploy" / "kubernetes"
RECORDED = ROOT / "tests" / "unit" / "engines" / "recorded" / "kubernetes_1_20.json"
GIB = 2**30
DEVICES = [DeviceRule(nodes="*", device="NVIDIA A10", memory_bytes=24 * GIB)]
LIGHT = "memory=6GiB utilization=0.3 slowdown=0.1 max_slowdown=0.5"
HEAVY = "memory=6GiB utilization=0.9 slowdown=0.9 max_slowdown=0.1"
NUMBERS = itertools.count(1)
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/cotenant/serviceaccounts",
    "Service": "/api/v1/namespaces/cotenant/services",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/cotenant/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/cotenant/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Deployment": "/apis/apps/v1/namespaces/cotenant/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/cotenant/daemonsets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/cotenant/networkpolicies",
    "PodDisruptionBudget": "/apis/policy/v1beta1/namespaces/cotenant/poddisruptionbudgets",
    "Job": "/apis/batch/v1/namespaces/cotenant/jobs",
}
# Newer than 1.20, which has the kind under an older version.
OLDER_VERSIONS = {"policy/v1": "policy/v1beta1"}


def manifests(name: str) -> list[Row]:
    rows = [row for row in yaml.safe_load_all((MANIFESTS / name).read_text()) if row]
    return [row | {"apiVersion": OLDER_VERSIONS.get(row["apiVersion"], row["apiVersion"])} for row in rows]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with tempfile.TemporaryDirectory(prefix="kubernetes") as folder, ControlPlane(Path(folder)) as running:
        for name in ("rbac.yaml", "place.yaml", "engine.yaml", "extender.yaml", "example-job.yaml"):
            for row in manifests(name):
                # None of our programs is to run in this cluster: there are no nodes that could.
                running.api().order("POST", PATHS[row["kind"]], row)
        nodes = [node_row("n1"), node_row("n2"), plugin_node("p1"), plugin_node("p2")]
        with FakeKubelets(running.api(), nodes):
            untainted(running)
            yield running


def untainted(plane: ControlPlane) -> None:
    def is_ready() -> bool:
        return not any(row["spec"].get("taints") for row in plane.api().list_rows("/api/v1/nodes", {}))

    wait_until(is_ready, "the nodes are ready")


@pytest.fixture
def team(plane: ControlPlane) -> Iterator[str]:
    """Make a namespace; end its pods afterwards."""
    name, api = f"team{next(NUMBERS)}", plane.api()
    api.order("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    api.order("DELETE", f"/apis/batch/v1/namespaces/{name}/jobs?propagationPolicy=Background", {})
    api.order("DELETE", f"/api/v1/namespaces/{name}/pods", {})
    wait_until(lambda: not api.list_rows(f"/api/v1/namespaces/{name}/pods", {}), "the pods have ended")


def submit(plane: ControlPlane, namespace: str, name: str, wishes: str | None, **how: Any) -> str:
    row = pod_row(name, wishes, namespace=namespace, **how)
    plane.api().order("POST", f"/api/v1/namespaces/{namespace}/pods", row)
    return f"{namespace}/{name}"


def pod(plane: ControlPlane, job_id: str) -> Row:
    return dict(plane.api().get(f"/api/v1/namespaces/{job_id.replace('/', '/pods/')}"))


def node_of(plane: ControlPlane, job_id: str) -> str:
    return str(pod(plane, job_id)["spec"].get("nodeName", ""))


def gpu_of(plane: ControlPlane, job_id: str) -> str:
    found = pod(plane, job_id)
    return f"{found['spec'].get('nodeName', '')}/{found['metadata']['annotations'].get('cotenant.io/gpu', '')}"


def ask(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
    """Decide, in a thread of its own wherever it is asked from."""
    return asyncio.run(decide(request, predictor=None, seconds_left=60))


def run_round(api: ServedApi, *, places: bool = True) -> RoundReport:
    return Bridge(KubernetesEngine(api, DEVICES), ask, policy="horus", places=places).run_round(now_ms=1_000)


def account_api(plane: ControlPlane, account: str) -> ServedApi:
    """Return a client with the token that the real controllers made for an account of rbac.yaml."""
    api = plane.api()

    def tokens() -> list[str]:
        secrets = api.list_rows("/api/v1/namespaces/cotenant/secrets", {})
        return [row["data"]["token"] for row in secrets if row["metadata"]["name"].startswith(f"{account}-token")]

    wait_until(lambda: bool(tokens()), f"{account} has a token")
    return plane.api(base64.b64decode(tokens()[0]).decode())


def test_two_pods_that_go_together_share_a_gpu_and_incompatible_ones_do_not(plane: ControlPlane, team: str) -> None:
    wishes = (HEAVY, HEAVY, HEAVY, LIGHT, LIGHT, HEAVY)
    *placed, waiting = [submit(plane, team, f"p{number}", wish) for number, wish in enumerate(wishes)]
    api = account_api(plane, "cotenant-engine")
    assert sorted(run_round(api).placed) == placed
    *heavy, first, second = [gpu_of(plane, job_id) for job_id in placed]
    assert len({*heavy, first}) == 4
    assert first == second
    assert node_of(plane, waiting) == ""
    assert run_round(api).disagreements == []
    events = plane.api().list_rows(f"/api/v1/namespaces/{team}/events", {})
    assert {row["involvedObject"]["name"] for row in events if row["reason"] == "CotenantPlaced"} == {
        job_id.partition("/")[2] for job_id in placed
    }


def test_a_pod_that_asks_the_plugin_is_placed_beside_a_compatible_one_on_a_time_sliced_gpu(
    plane: ControlPlane, team: str
) -> None:
    jobs = [submit(plane, team, f"p{number}", LIGHT, gpus=1) for number in range(3)]
    run_round(account_api(plane, "cotenant-engine"))
    assert sorted(node_of(plane, job_id) for job_id in jobs) in (["p1", "p1", "p2"], ["p1", "p2", "p2"])


def test_advice_is_an_annotation_and_an_event_and_nothing_else(plane: ControlPlane, team: str) -> None:
    job_id = submit(plane, team, "a", LIGHT)
    before = pod(plane, job_id)
    run_round(account_api(plane, "cotenant-engine"), places=False)
    after = pod(plane, job_id)
    assert after["metadata"]["annotations"].pop("cotenant.io/note").startswith("cotenant: would start on n")
    for row in (before, after):
        for name in ("resourceVersion", "managedFields"):
            row["metadata"].pop(name, None)
    # The server fills some parts of a status in at its first change.
    assert {**after, "status": {}} == {**before, "status": {}}


def test_a_controller_killed_between_two_orders_is_followed_by_one_that_goes_on(
    plane: ControlPlane, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, api = submit(plane, team, "a", LIGHT), account_api(plane, "cotenant-engine")
    with monkeypatch.context() as killed:
        killed.setattr(KubernetesEngine, "release", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run_round(api)
    planned = pod(plane, job_id)["metadata"]["annotations"]["cotenant.io/gpu"]
    assert node_of(plane, job_id) == ""
    assert run_round(api).lines[0] == f"job {job_id}: released: it was placed before"
    assert gpu_of(plane, job_id).endswith(f"/{planned}")


def test_a_requeued_pod_is_made_again_by_its_job_and_one_without_a_job_is_not_ended(
    plane: ControlPlane, team: str
) -> None:
    api = plane.api()
    template = pod_row("x", LIGHT)
    template["metadata"] = {"annotations": template["metadata"]["annotations"]}
    template["spec"]["restartPolicy"] = "Never"
    job = {"metadata": {"name": "train"}, "spec": {"template": template}}
    api.order("POST", f"/apis/batch/v1/namespaces/{team}/jobs", job)
    path = f"/api/v1/namespaces/{team}/pods"
    wait_until(lambda: bool(api.list_rows(path, {})), "the job has a pod")
    [first] = [row["metadata"]["name"] for row in api.list_rows(path, {})]
    run_round(api)
    engine = KubernetesEngine(api, DEVICES)
    with pytest.raises(EngineRefusedError, match="Job/train would start"):
        engine.stop(f"{team}/{first}", grace_s=1)
    engine.requeue(f"{team}/{first}", grace_s=1)

    def names() -> list[str]:
        return [row["metadata"]["name"] for row in api.list_rows(path, {})]

    wait_until(lambda: len(names()) == 1 and names() != [first], "another pod waits in its place")
    alone = submit(plane, team, "alone", LIGHT)
    with pytest.raises(EngineRefusedError, match="nothing would start"):
        engine.requeue(alone, grace_s=1)
    engine.stop(alone, grace_s=1)


def test_our_accounts_may_do_what_they_need_and_nothing_more(plane: ControlPlane, team: str) -> None:
    job_id = submit(plane, team, "a", LIGHT)
    path = f"/api/v1/namespaces/{job_id.replace('/', '/pods/')}"
    merge = kubernetes_exchanges.MERGE_PATCH
    image = {"spec": {"containers": [{"name": "train", "image": "evil"}]}}
    beyond_all = [
        ("PATCH", path, image, "application/strategic-merge-patch+json"),
        ("DELETE", path, {}, kubernetes_exchanges.JSON),
        ("POST", f"/api/v1/namespaces/{team}/pods", pod_row("b", None, namespace=team), kubernetes_exchanges.JSON),
        ("PATCH", "/api/v1/nodes/n1", {"metadata": {"labels": {"a": "b"}}}, merge),
        ("POST", f"{path}/eviction", {"metadata": {"name": "a", "namespace": team}}, kubernetes_exchanges.JSON),
    ]
    note = ("PATCH", f"{path}/status", {"metadata": {"annotations": {"a": "b"}}}, merge)
    binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "n1"}}
    bind = ("POST", f"{path}/binding", binding, kubernetes_exchanges.JSON)
    for account, refused in (("cotenant-engine", beyond_all), ("cotenant-extender", [*beyond_all, note, bind])):
        api = account_api(plane, account)
        for order in refused:
            with pytest.raises(EngineRefusedError, match="403"):
                api.order(*order)
        with pytest.raises(EngineUnreachableError, match="403"):
            api.list_rows("/api/v1/secrets", {})
        assert KubernetesEngine(api, DEVICES).read().jobs
    # Its status may be changed, and with it what is noted; what it runs stays.
    account_api(plane, "cotenant-engine").order("PATCH", f"{path}/status", image, merge)
    assert pod(plane, job_id)["spec"]["containers"][0]["image"] == "train"


def test_kube_scheduler_leaves_nodes_out_where_jobs_do_not_go_together(plane: ControlPlane, team: str) -> None:
    engine = KubernetesEngine(account_api(plane, "cotenant-extender"), DEVICES)
    told: list[str] = []
    lock = threading.Lock()

    def decide_one_by_one(request: scheduling_pb2.DecideRequest) -> scheduling_pb2.DecideResponse:
        with lock:
            return ask(request)

    extender = Extender(engine.read, decide_one_by_one, policy="horus", now_ms=lambda: 1_000, tell=told.append)
    server = ExtenderServer("127.0.0.1:0", extender)
    try:
        plane.stop("kube-scheduler")
        plane.use_extender(server.address)
        plane.start("kube-scheduler")
        default = {"scheduler": "default-scheduler", "gpus": 1}
        heavy = [submit(plane, team, f"h{number}", HEAVY, **default) for number in range(3)]
        wait_until(lambda: len({node_of(plane, one) for one in heavy}) == 3, "two are placed, one waits")
        assert sorted(node_of(plane, one) for one in heavy) == ["", "p1", "p2"]
        waiting = next(one for one in heavy if not node_of(plane, one))

        def reasons() -> str:
            events = plane.api().list_rows(f"/api/v1/namespaces/{team}/events", {})
            name = waiting.partition("/")[2]
            return " ".join(str(row.get("message")) for row in events if row["involvedObject"]["name"] == name)

        wait_until(lambda: "cotenant" in reasons(), "its events say why")
    finally:
        server.stop()
    assert told == []


def test_kube_scheduler_places_as_before_when_nobody_answers_for_the_extender(plane: ControlPlane, team: str) -> None:
    plane.stop("kube-scheduler")
    plane.use_extender("127.0.0.1:1")
    plane.start("kube-scheduler")
    jobs = [submit(plane, team, f"h{number}", HEAVY, scheduler="default-scheduler", gpus=1) for number in range(3)]
    wait_until(lambda: all(node_of(plane, one) for one in jobs), "all are placed")


def test_the_api_server_answers_as_recorded(plane: ControlPlane) -> None:
    api = plane.api()
    namespace = {"metadata": {"name": kubernetes_exchanges.NAMESPACE}}
    api.order("POST", "/api/v1/namespaces", namespace)

    def create(row: Row) -> Row:
        # Gated by no scheduler of this test.
        row["spec"]["schedulerName"] = "nobody"
        return dict(api.order("POST", f"/api/v1/namespaces/{kubernetes_exchanges.NAMESPACE}/pods", row))

    def send(method: str, path: str, body: Row, content_type: str) -> tuple[int, Row]:
        data = json.dumps(body).encode() if method != "GET" else b""
        status, answer = api._ask(method, path, data, content_type if data else "")
        return status, dict(answer)

    found = kubernetes_exchanges.exchange_all(send, create, "n1")
    if "COTENANT_RECORD" in os.environ:
        RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(RECORDED.read_text())


def test_the_manifests_are_valid_for_the_newest_kubernetes_too() -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    newest = validator.latest_version()
    for path in sorted(MANIFESTS.glob("*.yaml")):
        # No part of the API itself.
        if path.name in ("scheduler-config.yaml", "service-monitor.yaml", "Chart.yaml", "values.yaml"):
            continue
        for row in yaml.safe_load_all(path.read_text()):
            validator.validate(row, newest, strict=True)
    [pod] = manifests("example-claim.yaml")
    pod["metadata"] |= {"namespace": "team", "uid": "1"}
    for memory_bytes in (0, 8 * GIB):
        validator.validate(make_claim(pod, "GPU-8f", memory_bytes), newest, strict=True)
    device = {"driver": "gpu.nvidia.com", "pool": "gpu1", "device": "gpu-0"}
    validator.validate(make_rule("GPU-8f", device), newest, strict=True)
