"""An API server in this process: objects in memory, answers as Kubernetes 1.20.2 gives them."""

from __future__ import annotations

import copy
import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cotenant.engines.kubernetes.access import ClusterAccess
from cotenant.engines.kubernetes.adapter import KubernetesEngine
from cotenant.engines.kubernetes.api import ServedApi
from cotenant.engines.kubernetes.device_taints import RULES_PATH, SLICES_PATH
from cotenant.engines.records import EngineJob

Document = dict[str, Any]
_POD = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)(/status|/binding)?")
_LISTS = {"nodes": "Node", "pods": "Pod", "persistentvolumeclaims": "PersistentVolumeClaim", "persistentvolumes": "PV"}
_CREATED = "2026-11-23T06:00:00Z"


def node_row(name: str, *, uuids: str = "g0,g1", **labels: str) -> Document:
    """Return a node whose GPUs cotenant gives out, ready and empty."""
    amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
    about: Document = {"name": name, "labels": {"cotenant.io/gpus": "placed", **labels}}
    about["annotations"] = {"cotenant.io/gpu-uuids": uuids} if uuids else {}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": about, "spec": {}, "status": status}


def pod_row(
    name: str, job: str | None, *, namespace: str = "team", scheduler: str = "cotenant", gpus: int = 0
) -> Document:
    """Return a pod as its user writes it."""
    resources = {"cpu": "1", "memory": "100Mi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {"name": "train", "image": "train", "resources": {"requests": resources, "limits": resources}}
    about: Document = {"name": name, "namespace": namespace}
    if job is not None:
        about["annotations"] = {"cotenant.io/job": job}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": about,
        "spec": {"schedulerName": scheduler, "containers": [container]},
    }


def plugin_node(name: str) -> Document:
    """Return a node with one GPU, time-sliced in four by a device plugin."""
    row = node_row(name, uuids="")
    row["metadata"]["labels"] = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.replicas": "4"}
    amounts = {**row["status"]["allocatable"], "nvidia.com/gpu": "4"}
    row["status"] |= {"allocatable": amounts, "capacity": amounts}
    return row


def only_job(engine: KubernetesEngine) -> EngineJob:
    """Return the one job that the engine sees."""
    [job] = engine.read().jobs
    return job


class FakeKubernetes:
    """Nodes and pods by path; what is bound runs at once, what a Job owns is made again."""

    def __init__(self) -> None:
        self.objects: dict[str, Document] = {}
        self.requests: list[tuple[str, str]] = []
        self.events: list[Document] = []
        self.refused: dict[str, tuple[int, str]] = {}
        self.rows_per_page = 500
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def add(self, row: Document) -> Document:
        """Create an object; return it as it is stored."""
        row = copy.deepcopy(row)
        number = next(self._numbers)
        row["metadata"] |= {"uid": f"uid-{number}", "resourceVersion": str(number), "creationTimestamp": _CREATED}
        if row["kind"] == "Pod":
            row["status"] = {"phase": "Pending"}
        self.objects[_path_of(row)] = row
        return row

    def pod(self, job_id: str) -> Document:
        """Return a pod by namespace/name."""
        namespace, _, name = job_id.partition("/")
        return self.objects[f"/api/v1/namespaces/{namespace}/pods/{name}"]

    def answer(self, method: str, target: str, body: Document) -> tuple[int, Document]:
        """Answer one request."""
        parts = urlsplit(target)
        with self._lock:
            self.requests.append((method, parts.path))
            for pattern, (status, message) in self.refused.items():
                if re.fullmatch(pattern, f"{method} {parts.path}"):
                    return status, _status(status, message)
            if match := _POD.fullmatch(parts.path):
                return self._about_pod(method, parts.path, match, body)
            if method == "POST" and parts.path.endswith("/events"):
                self.events.append(body)
                return 201, body
            if re.search("/(resourceclaims|leases|devicetaintrules|resourceslices)", parts.path):
                return self._about_object(method, parts.path, body)
            return self._list(parts.path.rpartition("/")[2], parse_qs(parts.query))

    def _list(self, name: str, query: dict[str, list[str]]) -> tuple[int, Document]:
        if name not in _LISTS:
            return 404, _status(404, "the server could not find the requested resource")
        found = [row for row in self.objects.values() if row["kind"] == _LISTS[name]]
        if "fieldSelector" in query:
            found = [row for row in found if row["status"]["phase"] not in ("Succeeded", "Failed")]
        begin = int(query.get("continue", ["0"])[0])
        end = begin + min(self.rows_per_page, int(query["limit"][0]))
        about = {"resourceVersion": "1"} | ({"continue": str(end)} if end < len(found) else {})
        return 200, {"kind": "List", "apiVersion": "v1", "metadata": about, "items": found[begin:end]}

    def _about_pod(self, method: str, path: str, match: re.Match[str], body: Document) -> tuple[int, Document]:
        namespace, name, part = match.groups()
        pod = self.objects.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        if pod is None:
            return 404, _status(404, f'pods "{name}" not found')
        if method == "GET":
            return 200, pod
        if method == "PATCH" and part == "/status":
            return self._patch(pod, body)
        if method == "PATCH" and not part:
            pod["spec"] |= body["spec"]
            return 200, pod
        if method == "POST" and part == "/binding":
            return self._bind(pod, body)
        if method == "DELETE" and not part:
            return self._delete(pod, body)
        return 405, _status(405, "the server does not allow this method on the requested resource")

    def _about_object(self, method: str, path: str, body: Document) -> tuple[int, Document]:
        """Answer about claims, their devices and taints, as documented, and leases."""
        if method == "GET" and path in (RULES_PATH, SLICES_PATH):
            return 200, {"items": [row for at, row in self.objects.items() if at.startswith(f"{path}/")]}
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return 409, _status(409, "already exists")
            self.objects[path] = body
            body["metadata"]["resourceVersion"] = str(next(self._numbers))
            return 201, body
        found = self.objects.get(path)
        if found is None:
            return 404, _status(404, "not found")
        if method == "DELETE":
            del self.objects[path]
        if method == "PUT":
            if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
                return 409, _status(409, "the object has been modified")
            body["metadata"]["resourceVersion"] = str(next(self._numbers))
            self.objects[path] = body
        return 200, found

    def _patch(self, pod: Document, body: Document) -> tuple[int, Document]:
        about, name = pod["metadata"], pod["metadata"]["name"]
        if body["metadata"].get("resourceVersion", about["resourceVersion"]) != about["resourceVersion"]:
            return 409, _status(
                409,
                f'Operation cannot be fulfilled on pods "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again",
            )
        self._merge(pod, body["metadata"]["annotations"])
        return 200, pod

    def _merge(self, pod: Document, changes: dict[str, str | None]) -> None:
        merged = pod["metadata"].get("annotations", {}) | changes
        pod["metadata"]["annotations"] = {key: value for key, value in merged.items() if value is not None}
        pod["metadata"]["resourceVersion"] = str(next(self._numbers))

    def _bind(self, pod: Document, body: Document) -> tuple[int, Document]:
        name, bound = pod["metadata"]["name"], pod["spec"].get("nodeName")
        if bound:
            message = (
                f'Operation cannot be fulfilled on pods/binding "{name}": '
                f'pod {name} is already assigned to node "{bound}"'
            )
            return 409, _status(409, message)
        self._merge(pod, body["metadata"].get("annotations", {}))
        pod["spec"]["nodeName"] = body["target"]["name"]
        pod["status"] = {"phase": "Running", "startTime": _CREATED}
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    def _delete(self, pod: Document, body: Document) -> tuple[int, Document]:
        name, wanted = pod["metadata"]["name"], body["preconditions"]["uid"]
        if wanted != pod["metadata"]["uid"]:
            return 409, _status(409, f'Operation cannot be fulfilled on Pod "{name}": the UID in the precondition')
        del self.objects[_path_of(pod)]
        if owners := pod["metadata"].get("ownerReferences"):
            again = pod_row(f"{name}-again", None)
            again["metadata"] |= {"ownerReferences": owners, "namespace": pod["metadata"]["namespace"]}
            job = pod["metadata"].get("annotations", {}).get("cotenant.io/job")
            again["metadata"]["annotations"] = {"cotenant.io/job": job} if job is not None else {}
            self.add(again)
        return 200, pod


@contextmanager
def served(cluster: FakeKubernetes) -> Iterator[str]:
    """Serve it; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            status, document = cluster.answer(self.command, self.path, body)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = respond  # noqa: N815 (as http.server calls them)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reached(address: str) -> ServedApi:
    """Return what asks it."""
    host, _, port = address.partition(":")
    return ServedApi(ClusterAccess(host=host, port=int(port)))


def _path_of(row: Document) -> str:
    about, kind = row["metadata"], row["kind"]
    plural = next(name for name, one in _LISTS.items() if one == kind)
    namespace = f"namespaces/{about['namespace']}/" if "namespace" in about else ""
    return f"/api/v1/{namespace}{plural}/{about['name']}"


def _status(code: int, message: str) -> Document:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
