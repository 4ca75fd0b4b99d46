"""One controller at a time gives orders: the holder of the lease cotenant/cotenant-engine, as usual in Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cotenant import system_clock
from cotenant.engines.errors import (
    EngineDeniedError,
    EngineForbiddenError,
    EngineRefusedError,
    EngineTakenError,
    EngineUnreachableError,
)
from cotenant.engines.kubernetes.api import KubernetesApi
from cotenant.engines.kubernetes.values import Row, text_of

NAMESPACE: Final = "cotenant"
NAME: Final = "cotenant-engine"
DURATION_MS: Final = 15_000
RENEWED_MS: Final = 5_000
_PATH: Final = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"


class ControllerLease:
    """Ours, or another holder's; one that is not seen to renew it for 15 s of our own clock has lost it.

    Args:
        api: Reaches the API server.
        identity: Ours alone, e.g. of host and process.
        now_ms: Clock for what is written.
        steady_ms: Clock for what is waited.
    """

    def __init__(
        self,
        api: KubernetesApi,
        identity: str,
        *,
        now_ms: Callable[[], int] = system_clock.now_ms,
        steady_ms: Callable[[], int] = system_clock.steady_ms,
    ) -> None:
        self._api = api
        self._identity = identity
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._renewed_at_ms: int | None = None
        self._seen: tuple[str, int] = ("", 0)

    def keep(self) -> None:
        """Take the lease, or renew it where that was 5 s ago.

        Raises:
            EngineTakenError: Another controller has it.
            EngineDeniedError: There is no right to it.
            EngineUnreachableError: It could not be taken now.
        """
        at_ms = self._steady_ms()
        if self._renewed_at_ms is not None and at_ms - self._renewed_at_ms < RENEWED_MS:
            return
        self._renewed_at_ms = None
        try:
            self._take(at_ms)
        except EngineRefusedError as error:
            kind = EngineDeniedError if isinstance(error, EngineForbiddenError) else EngineUnreachableError
            raise kind(
                f"the lease {NAMESPACE}/{NAME} could not be taken: {error.message}",
                remedy="apply deploy/kubernetes/rbac.yaml, which makes its namespace and the right to it",
            ) from error
        self._renewed_at_ms = at_ms

    def give_up(self) -> None:
        """Let another controller take it at once; where that fails, in 15 s."""
        if self._renewed_at_ms is None:
            return
        self._renewed_at_ms = None
        try:
            found = self._api.get(f"{_PATH}/{NAME}")
            if text_of(found, "spec", "holderIdentity") == self._identity:
                self._api.order("PUT", f"{_PATH}/{NAME}", self._lease("", _version(found)))
        except (EngineRefusedError, EngineUnreachableError):
            return

    def _take(self, at_ms: int) -> None:
        try:
            found = self._api.get(f"{_PATH}/{NAME}")
        except EngineRefusedError:
            self._api.order("POST", _PATH, self._lease(self._identity))
            return
        holder = text_of(found, "spec", "holderIdentity")
        if holder not in ("", self._identity) and not self._has_expired(_version(found), at_ms):
            raise EngineTakenError(
                f"the controller {holder} places pods in this cluster; this one waits until it has ended"
            )
        # Refused where another holder was faster.
        self._api.order("PUT", f"{_PATH}/{NAME}", self._lease(self._identity, _version(found)))

    def _has_expired(self, version: str, at_ms: int) -> bool:
        if self._seen[0] != version:
            self._seen = (version, at_ms)
        return at_ms - self._seen[1] >= DURATION_MS

    def _lease(self, holder: str, version: str = "") -> dict[str, Any]:
        metadata = {"name": NAME, "namespace": NAMESPACE} | ({"resourceVersion": version} if version else {})
        renewed = system_clock.iso_utc(self._now_ms()).removesuffix("Z") + ".000000Z"
        spec = {"holderIdentity": holder, "leaseDurationSeconds": DURATION_MS // 1_000, "renewTime": renewed}
        return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def _version(row: Row) -> str:
    return text_of(row, "metadata", "resourceVersion")
