"""Which volumes of pods are bound, and to which nodes they tie them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cotenant.engines.kubernetes.node_choice import fits_terms
from cotenant.engines.kubernetes.values import Row, row_of, rows_of, text_of

_BOUND: Final = "Bound"


def claim_names(pod: Row) -> list[str]:
    """Return the claims that a pod uses; those of its own are named after it."""
    names = []
    for volume in rows_of(pod, "spec", "volumes"):
        name = text_of(volume, "persistentVolumeClaim", "claimName")
        if "ephemeral" in volume:
            name = f"{text_of(pod, 'metadata', 'name')}-{text_of(volume, 'name')}"
        if name:
            names.append(name)
    return names


class Volumes:
    """Claims and volumes of one reading.

    Args:
        claims: PersistentVolumeClaims.
        volumes: PersistentVolumes.
    """

    def __init__(self, claims: Iterable[Row] = (), volumes: Iterable[Row] = ()) -> None:
        self._claims = {
            (text_of(row, "metadata", "namespace"), text_of(row, "metadata", "name")): row for row in claims
        }
        self._volumes = {text_of(row, "metadata", "name"): row for row in volumes}

    def obstacle(self, pod: Row) -> str:
        """Say which claim only kube-scheduler could bind; empty = all are bound."""
        unbound = (name for name in claim_names(pod) if text_of(self._claim(pod, name), "status", "phase") != _BOUND)
        return next((f"the claim {name}, which is not bound to a volume" for name in unbound), "")

    def fits_node(self, pod: Row, node: Row) -> bool:
        """Say whether all its volumes can be reached from a node."""
        return all(
            not (required := row_of(self._volume(pod, name), "spec", "nodeAffinity", "required"))
            or fits_terms(required, node)
            for name in claim_names(pod)
        )

    def _claim(self, pod: Row, name: str) -> Row:
        return self._claims.get((text_of(pod, "metadata", "namespace"), name), {})

    def _volume(self, pod: Row, name: str) -> Row:
        return self._volumes.get(text_of(self._claim(pod, name), "spec", "volumeName"), {})
