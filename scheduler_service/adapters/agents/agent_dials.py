"""In which order agents said what they hold, so that a word which the network kept back is known for what it is."""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.v1 import node_agent_pb2

_NODES_MAX = 10_000
_BOOTS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Heard:
    """The newest Hello of a node that was believed, and the boots that it was heard from, the newest last."""

    instance_id: str
    dial_number: int
    boot_ids: tuple[str, ...]


class AgentDials:
    """Remembers the newest Hello of each node; bounded, and forgotten with the process, as its streams are."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}

    def newest_of(self, hello: node_agent_pb2.Hello) -> int:
        """Return the number of the newest Hello of the same process; 0 = there was none."""
        heard = self._heard.get(hello.node_id)
        return heard.dial_number if heard is not None and heard.instance_id == hello.instance_id else 0

    def is_of_former_boot(self, hello: node_agent_pb2.Hello) -> bool:
        """Say whether the node was heard from a later boot: none ever comes back, but to a machine that is set back."""
        heard = self._heard.get(hello.node_id)
        return heard is not None and bool(hello.boot_id) and hello.boot_id in heard.boot_ids[:-1]

    def note(self, hello: node_agent_pb2.Hello) -> None:
        """Remember a Hello that was believed."""
        before = self._heard.pop(hello.node_id, None)
        if len(self._heard) >= _NODES_MAX:
            del self._heard[next(iter(self._heard))]
        others = [one for one in before.boot_ids if one != hello.boot_id] if before is not None else []
        self._heard[hello.node_id] = _Heard(
            instance_id=hello.instance_id,
            dial_number=hello.dial_number,
            boot_ids=(*others, hello.boot_id)[-_BOOTS_MAX:],
        )
