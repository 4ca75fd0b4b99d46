"""What a client can ask about the machines of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cotenant.listing_pages import LIST_PAGE_SIZE, read_pages
from cotenant.v1 import resources_pb2, scheduling_pb2

if TYPE_CHECKING:
    from cotenant.v1.scheduling_pb2_grpc import SchedulingServiceStub

_Answer = TypeVar("_Answer")


class NodeCalls:
    """A part of `SchedulerClient`, which has the stub and translates errors."""

    _stub: SchedulingServiceStub

    def _ask(self, call: Callable[[float], _Answer]) -> _Answer:
        raise NotImplementedError

    def list_nodes(self) -> list[scheduling_pb2.Node]:
        """Returns all nodes with their GPUs."""

        def read_page(token: str) -> tuple[Sequence[scheduling_pb2.Node], str]:
            request = scheduling_pb2.ListNodesRequest(page_size=LIST_PAGE_SIZE, page_token=token)
            page = self._ask(lambda timeout: self._stub.ListNodes(request, timeout=timeout))
            return page.nodes, page.next_page_token

        return read_pages(read_page)

    def list_warnings(self) -> list[resources_pb2.Warning]:
        """Returns why the scheduler gives no orders at present; empty = it does."""
        request = scheduling_pb2.ListNodesRequest(page_size=1)
        return list(self._ask(lambda timeout: self._stub.ListNodes(request, timeout=timeout)).warnings)
