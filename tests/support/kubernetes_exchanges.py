"""Exchanges with an API server from one empty namespace on: what is asked, and what stays of an answer without ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.fake_kubernetes import pod_row

Document = dict[str, Any]
Ask = Callable[[str, str, Document, str], tuple[int, Document]]
MERGE_PATCH = "application/merge-patch+json"
JSON = "application/json"
NAMESPACE = "exchanges"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_ALIVE = "fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed"


def exchange_all(ask: Ask, create: Callable[[Document], Document], node: str) -> list[Document]:
    """Play every exchange; return the answers.

    Args:
        ask: Sends one request.
        create: Makes a pod.
        node: A node that takes pods.
    """
    answers: list[Document] = []

    def play(method: str, path: str, body: Document | None = None, content_type: str = JSON) -> Document:
        status, answer = ask(method, path, body or {}, content_type)
        asked = path.replace(NAMESPACE, "NAMESPACE").replace(_ALIVE, "ALIVE")
        answers.append({"request": f"{method} {asked}", "status": status, **_kept(answer)})
        return answer

    first = create(pod_row("a", "memory=6GiB", namespace=NAMESPACE))["metadata"]
    create(pod_row("b", None, namespace=NAMESPACE))
    play("GET", f"{_PODS}/a")
    play("GET", f"{_PODS}/gone")
    note = {"cotenant.io/note": "cotenant placed n1/g1 25: x", "cotenant.io/gpu": "g1", "cotenant.io/gpu-memory": None}
    changed = {"annotations": note, "resourceVersion": first["resourceVersion"]}
    play("PATCH", f"{_PODS}/a/status", {"metadata": changed}, MERGE_PATCH)
    play("PATCH", f"{_PODS}/a/status", {"metadata": changed}, MERGE_PATCH)
    play("PATCH", f"{_PODS}/gone/status", {"metadata": {"annotations": note}}, MERGE_PATCH)
    binding = _binding("a", first["uid"], node)
    play("POST", f"{_PODS}/a/binding", binding)
    play("POST", f"{_PODS}/a/binding", binding)
    play("POST", f"{_PODS}/gone/binding", _binding("gone", first["uid"], node))
    play("GET", f"{_PODS}/a")
    play("POST", f"/api/v1/namespaces/{NAMESPACE}/events", _event(first["uid"]))
    play("DELETE", f"{_PODS}/gone", _deletion("0000"))
    play("DELETE", f"{_PODS}/b", _deletion("0000"))
    play("GET", f"{_PODS}?limit=1")
    play("GET", f"{_PODS}?{_ALIVE}&limit=500")
    return answers


def _binding(name: str, uid: str, node: str) -> Document:
    about = {"name": name, "namespace": NAMESPACE, "uid": uid, "annotations": {"cotenant.io/gpu": "g0"}}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": about, "target": target}


def _event(uid: str) -> Document:
    about = {"apiVersion": "v1", "kind": "Pod", "name": "a", "namespace": NAMESPACE, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": "a.", "namespace": NAMESPACE},
        "involvedObject": about,
        "reason": "CotenantAdvice",
        "message": "x",
        "type": "Normal",
        "source": {"component": "cotenant"},
    }


def _deletion(uid: str) -> Document:
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 5}
    return options | {"preconditions": {"uid": uid}}


def _kept(answer: Document) -> Document:
    """Return what the adapter reads, and what people are told; without ids and times."""
    kept: Document = {}
    if answer.get("status") in ("Failure", "Success"):
        kept["said"] = str(answer.get("message", "")).partition("UID in")[0]
    if "items" in answer:
        kept["items"] = sorted(row["metadata"]["name"] for row in answer["items"])
        kept["continues"] = bool(answer["metadata"].get("continue"))
    if answer.get("kind") == "Pod":
        kept["annotations"] = answer["metadata"].get("annotations", {})
        kept["bound"] = bool(answer["spec"].get("nodeName"))
    document: Document = json.loads(json.dumps(kept))
    return document
