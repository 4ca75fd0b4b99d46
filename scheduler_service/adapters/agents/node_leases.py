"""When a silent node has certainly ended everything that ran there."""

from __future__ import annotations

import math
from collections.abc import Sequence


class NodeLeases:
    """Counts from the last acknowledgement that was sent to each node.

    A node's shims end their jobs at lease + grace after the last renewal that reached them. No renewal can be younger
    than the last one sent, so lease + grace + margin after that nothing runs there any more.

    Args:
        lease_ms: How long a renewal lasts.
        grace_ms: How long an end may take after it.
        margin_ratio: Added to both, for clocks that run at different speeds.
    """

    def __init__(self, *, lease_ms: int, grace_ms: int, margin_ratio: float) -> None:
        self.lost_after_ms = math.ceil((lease_ms + grace_ms) * (1 + margin_ratio))
        self._renewed_at_ms: dict[str, int] = {}

    def renew(self, node_id: str, *, now_ms: int) -> None:
        """Note that an acknowledgement was sent, or that one may have been sent until now."""
        self._renewed_at_ms[node_id] = now_ms

    def remaining_ms(self, node_id: str, *, now_ms: int) -> int:
        """Return how long something may still run on a node that is renewed no more; 0 = nothing does."""
        renewed_at_ms = self._renewed_at_ms.get(node_id)
        return 0 if renewed_at_ms is None else max(0, renewed_at_ms + self.lost_after_ms - now_ms)

    def lost(self, *, now_ms: int) -> Sequence[str]:
        """Return the nodes whose lease is over, and forget them."""
        lost = sorted(
            node_id
            for node_id, renewed_at_ms in self._renewed_at_ms.items()
            if now_ms - renewed_at_ms >= self.lost_after_ms
        )
        for node_id in lost:
            del self._renewed_at_ms[node_id]
        return lost
