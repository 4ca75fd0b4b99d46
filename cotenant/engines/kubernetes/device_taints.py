"""GPUs with pods that we placed by claims are closed to the claims of others, which were not predicted.

A taint on the device does it, which our own claims tolerate. Like the claims these objects are checked against the
schemas of Kubernetes (1.36 and newer), and were never run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from cotenant.engines.errors import EngineRefusedError
from cotenant.engines.kubernetes.api import KubernetesApi
from cotenant.engines.kubernetes.resource_claims import DEVICE_CLASS, OUR_LABELS, TAINT
from cotenant.engines.kubernetes.values import Row, row_of, rows_of, text_of

RULES_PATH: Final = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
SLICES_PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"
_ODD = re.compile(r"[^a-z0-9.-]")


class DeviceTaints:
    """Closes GPUs, and opens them again.

    Args:
        api: Reaches the API server.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._may_be_left = True

    def close(self, uuid: str) -> None:
        """Close one GPU, before a pod of ours gets it; one that is closed stays so.

        Raises:
            EngineRefusedError: The cluster has no such device or no such taints, or we lack the right.
        """
        if rule_name(uuid) not in self._ours():
            self._create([uuid])
        self._may_be_left = True

    def tend(self, uuids: Collection[str]) -> list[str]:
        """Close these GPUs and open all others that we had closed; return what is wrong."""
        if not uuids and not self._may_be_left:
            return []
        try:
            ours = self._ours()
            wanted = {rule_name(uuid): uuid for uuid in uuids}
            for name in sorted(ours - wanted.keys()):
                self._api.order("DELETE", f"{RULES_PATH}/{name}", {})
            self._create([wanted[name] for name in sorted(wanted.keys() - ours)])
        except EngineRefusedError as error:
            # A cluster without claims has no such taints either, and nothing to be said about them.
            self._may_be_left = False
            return [f"GPUs that pods hold by claims are open to others: {error.message}"] if uuids else []
        self._may_be_left = bool(uuids)
        return []

    def _ours(self) -> set[str]:
        rules = rows_of(self._api.get(RULES_PATH), "items")
        return {
            text_of(rule, "metadata", "name")
            for rule in rules
            if row_of(rule, "metadata", "labels").items() >= OUR_LABELS.items()
        }

    def _create(self, uuids: Collection[str]) -> None:
        devices = devices_of(rows_of(self._api.get(SLICES_PATH), "items")) if uuids else {}
        for uuid in uuids:
            if uuid not in devices:
                raise EngineRefusedError(
                    f"no resource slice of {DEVICE_CLASS} has a device with the uuid {uuid}",
                    remedy="correct cotenant.io/gpu-uuids of its node",
                )
            self._api.order("POST", RULES_PATH, make_rule(uuid, devices[uuid]))


def devices_of(slices: Collection[Row]) -> dict[str, dict[str, str]]:
    """Return which driver, pool and device a uuid stands for."""
    found: dict[str, dict[str, str]] = {}
    for slice_ in slices:
        if text_of(slice_, "spec", "driver") != DEVICE_CLASS:
            continue
        for device in rows_of(slice_, "spec", "devices"):
            attributes = row_of(device, "attributes")
            # A name without a domain is one of the driver's own.
            uuid = text_of(attributes, "uuid", "string") or text_of(attributes, f"{DEVICE_CLASS}/uuid", "string")
            found[uuid] = {
                "driver": DEVICE_CLASS,
                "pool": text_of(slice_, "spec", "pool", "name"),
                "device": text_of(device, "name"),
            }
    found.pop("", None)
    return found


def rule_name(uuid: str) -> str:
    """Return the name of the rule that closes a GPU."""
    return f"cotenant-{_ODD.sub('-', uuid.lower())}"


def make_rule(uuid: str, device: Mapping[str, str]) -> dict[str, Any]:
    """Return the rule that closes a GPU.

    Args:
        uuid: Of the GPU.
        device: Its driver, pool and name.
    """
    return {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": rule_name(uuid), "labels": dict(OUR_LABELS)},
        "spec": {"deviceSelector": dict(device), "taint": {"key": TAINT, "effect": "NoSchedule"}},
    }
