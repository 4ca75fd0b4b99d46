"""On which nodes a pod may run, by the rules of kube-scheduler that are understood here; the others close all nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from cotenant.engines.kubernetes import enforced_limits, hami, pods
from cotenant.engines.kubernetes.resource_claims import claim_of, is_held_by_our_gate
from cotenant.engines.kubernetes.values import Row, row_of, rows_of, text_of, texts_of

_CLOSING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


def fits_node(pod: Row, node: Row) -> bool:
    """Say whether selector, required affinity and tolerations of a pod let it run on a node."""
    labels = row_of(node, "metadata", "labels")
    if any(labels.get(name) != value for name, value in row_of(pod, "spec", "nodeSelector").items()):
        return False
    required = row_of(pod, "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    if required and not fits_terms(required, node):
        return False
    tolerations = rows_of(pod, "spec", "tolerations")
    taints = (taint for taint in rows_of(node, "spec", "taints") if taint.get("effect") in _CLOSING_EFFECTS)
    return all(any(_tolerates(toleration, taint) for toleration in tolerations) for taint in taints)


def fits_terms(selector: Row, node: Row) -> bool:
    """Say whether one of the terms of a node selector fits; one without rules fits no node."""
    return any(_fits_term(term, node) for term in rows_of(selector, "nodeSelectorTerms"))


def obstacle_of(pod: Row) -> str:
    """Say which wish of a pod is not understood here, so that it is placed nowhere; empty = none."""
    spec = row_of(pod, "spec")
    if any(row.get("whenUnsatisfiable") != "ScheduleAnyway" for row in rows_of(spec, "topologySpreadConstraints")):
        return "topologySpreadConstraints that must hold"
    for name in ("podAffinity", "podAntiAffinity"):
        if rows_of(spec, "affinity", name, "requiredDuringSchedulingIgnoredDuringExecution"):
            return f"required {name}"
    if rows_of(spec, "resourceClaims") and not (is_held_by_our_gate(pod) and claim_of(pod)):
        return "resourceClaims"
    if is_held_by_our_gate(pod) and not claim_of(pod) and (obstacle := hami.obstacle_of(pods.requests_of(pod))):
        return obstacle
    if slices := pods.slices_asked(pods.requests_of(pod)):
        return f"fixed slices of GPUs ({slices[0]}); leave them to Kubernetes' own scheduler"
    if obstacle := enforced_limits.obstacle_of(pod):
        return obstacle
    ports = (port for container in rows_of(spec, "containers") for port in rows_of(container, "ports"))
    return "host ports" if any(port.get("hostPort") for port in ports) else ""


def _fits_term(term: Row, node: Row) -> bool:
    labels, name = row_of(node, "metadata", "labels"), text_of(node, "metadata", "name")
    rules, fields = rows_of(term, "matchExpressions"), rows_of(term, "matchFields")
    return bool(rules or fields) and (
        all(_holds(rule, labels) for rule in rules) and all(_holds(rule, {"metadata.name": name}) for rule in fields)
    )


def _holds(rule: Row, labels: Mapping[str, object]) -> bool:
    found = labels.get(text_of(rule, "key"))
    operator = _OPERATORS.get(text_of(rule, "operator"))
    return operator is not None and operator(found if isinstance(found, str) else None, texts_of(rule, "values"))


def _compares(found: str | None, values: Iterable[str], holds: Callable[[int, int], bool]) -> bool:
    try:
        [value] = values
        return found is not None and holds(int(found), int(value))
    except ValueError:
        return False


_OPERATORS: Final[Mapping[str, Callable[[str | None, list[str]], bool]]] = MappingProxyType(
    {
        "In": lambda found, values: found in values,
        "NotIn": lambda found, values: found not in values,
        "Exists": lambda found, _: found is not None,
        "DoesNotExist": lambda found, _: found is None,
        "Gt": lambda found, values: _compares(found, values, lambda one, other: one > other),
        "Lt": lambda found, values: _compares(found, values, lambda one, other: one < other),
    }
)


def _tolerates(toleration: Row, taint: Row) -> bool:
    if text_of(toleration, "effect") not in ("", taint.get("effect")):
        return False
    key = text_of(toleration, "key")
    if text_of(toleration, "operator") == "Exists":
        return key in ("", taint.get("key"))
    return bool(key) and key == taint.get("key") and text_of(toleration, "value") == text_of(taint, "value")
