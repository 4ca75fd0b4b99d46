"""Kubelets of nodes that are not there: what is bound runs for a while and ends; they note what ran where and when."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from cotenant.engines.errors import EngineError, EngineRefusedError
from cotenant.engines.kubernetes.api import ServedApi
from cotenant.engines.kubernetes.values import Row, row_of, text_of

RUNNING_S_ANNOTATION = "test/running-s"
_MERGE_PATCH = "application/merge-patch+json"
_BEAT_S = 5.0
_LOOK_S = 0.1


@dataclass
class PodRun:
    """One pod, from its start to its end; 0 = it has not ended."""

    name: str
    node: str
    annotations: dict[str, str]
    began_s: float
    ended_s: float = 0.0


class FakeKubelets:
    """Serves all nodes from one thread; use it as a context manager.

    Args:
        api: May do anything.
        nodes: As they are to be; created where they are missing.
    """

    def __init__(self, api: ServedApi, nodes: list[dict[str, Any]]) -> None:
        self._api = api
        self._nodes = nodes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._live, name="kubelets", daemon=True)
        self.runs: dict[str, PodRun] = {}

    def __enter__(self) -> FakeKubelets:
        for node in self._nodes:
            with contextlib.suppress(EngineRefusedError):
                self._api.order("POST", "/api/v1/nodes", node)
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _live(self) -> None:
        beaten_s = time.monotonic()
        while not self._stop.wait(_LOOK_S):
            # The API server is killed by some tests; a kubelet goes on.
            with contextlib.suppress(EngineError):
                self._look()
                if time.monotonic() - beaten_s > _BEAT_S:
                    self._beat()
                    beaten_s = time.monotonic()

    def _beat(self) -> None:
        for node in self._nodes:
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            self._api.order("PATCH", path, {"status": node["status"]}, _MERGE_PATCH)

    def _look(self) -> None:
        for pod in self._api.list_rows("/api/v1/pods", {"fieldSelector": "spec.nodeName!="}):
            with contextlib.suppress(EngineRefusedError):
                self._serve(pod)

    def _serve(self, pod: Row) -> None:
        uid, phase = text_of(pod, "metadata", "uid"), text_of(pod, "status", "phase")
        name = f"{text_of(pod, 'metadata', 'namespace')}/{text_of(pod, 'metadata', 'name')}"
        path = f"/api/v1/namespaces/{name.replace('/', '/pods/', 1)}"
        run = self.runs.get(uid)
        if "deletionTimestamp" in row_of(pod, "metadata"):
            if run is not None:
                run.ended_s = run.ended_s or time.monotonic()
            self._api.order("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
        elif phase == "Pending":
            annotations = {str(key): str(value) for key, value in row_of(pod, "metadata", "annotations").items()}
            node = text_of(pod, "spec", "nodeName")
            self.runs.setdefault(uid, PodRun(name, node, annotations, time.monotonic()))
            self._set_phase(path, "Running")
        elif phase == "Running" and run is not None:
            lasts_s = float(run.annotations.get(RUNNING_S_ANNOTATION, "inf"))
            if time.monotonic() - run.began_s >= lasts_s:
                # Written down first: whoever sees the phase may take the GPU at once.
                run.ended_s = run.ended_s or time.monotonic()
                self._set_phase(path, "Succeeded")

    def _set_phase(self, path: str, phase: str) -> None:
        conditions = [{"type": "Ready", "status": "True" if phase == "Running" else "False"}]
        status: dict[str, Any] = {"phase": phase, "conditions": conditions}
        if phase == "Running":
            status["startTime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._api.order("PATCH", f"{path}/status", {"status": status}, _MERGE_PATCH)
