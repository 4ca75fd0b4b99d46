"""What a client can ask about the machines of a cluster."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from cotenant.listing_pages import LIST_PAGE_SIZE, read_pages
from cotenant.v1 import resources_pb2, scheduling_pb2

if TYPE_CHECKING:
    from cotenant.v1.scheduling_pb2_grpc import SchedulingServiceStub

_Answer = TypeVar("_Answer")


class NodeCalls(ABC):
    """A part of `SchedulerClient`, which has the stub and translates errors."""

    _stub: SchedulingServiceStub

    @abstractmethod
    def _ask(self, call: Callable[[float], _Answer]) -> _Answer:
        """Call with a time limit in seconds."""

    def list_nodes(self) -> list[scheduling_pb2.Node]:
        """Returns all nodes with their GPUs."""

        def read_page(token: str) -> tuple[Sequence[scheduling_pb2.Node], str]:
            request = scheduling_pb2.ListNodesRequest(page_size=LIST_PAGE_SIZE, page_token=token)
            page = self._ask(lambda timeout: self._stub.ListNodes(request, timeout=timeout))
            return page.nodes, page.next_page_token

        return read_pages(read_page)

    def list_warnings(self) -> list[resources_pb2.Warning]:
        """Returns why the scheduler gives no orders at present, and what unknown to it is being stopped."""
        return list(self._short_list().warnings)

    def list_troubles(self) -> list[resources_pb2.Warning]:
        """Returns what an operator should look after; an older scheduler says nothing."""
        return list(self._short_list().troubles)

    def list_warnings_and_troubles(self) -> list[resources_pb2.Warning]:
        """Returns both, by one call."""
        found = self._short_list()
        return [*found.warnings, *found.troubles]

    def _short_list(self) -> scheduling_pb2.ListNodesResponse:
        request = scheduling_pb2.ListNodesRequest(page_size=1)
        return self._ask(lambda timeout: self._stub.ListNodes(request, timeout=timeout))

    def forget_node(self, node_id: str) -> list[str]:
        """Gives up a node that is not heard, and returns the jobs that are lost with it.

        Raises:
            NotFoundError: No such node.
            ServiceError: It is heard.
        """
        request = scheduling_pb2.ForgetNodeRequest(request_id=str(uuid.uuid4()), node_id=node_id)
        return list(self._ask(lambda timeout: self._stub.ForgetNode(request, timeout=timeout)).lost_job_ids)

    def cordon_node(self, node_id: str, *, drain: bool = False) -> list[str]:
        """Starts nothing more on a node, and returns the jobs that draining it moves away; repeating it is harmless.

        Raises:
            NotFoundError: No such node.
        """
        request = scheduling_pb2.CordonNodeRequest(request_id=str(uuid.uuid4()), node_id=node_id, drain=drain)
        return list(self._ask(lambda timeout: self._stub.CordonNode(request, timeout=timeout)).moving_job_ids)

    def uncordon_node(self, node_id: str) -> None:
        """Lets a cordoned or drained node take jobs again; another one is left as it is.

        Raises:
            NotFoundError: No such node.
        """
        request = scheduling_pb2.UncordonNodeRequest(request_id=str(uuid.uuid4()), node_id=node_id)
        self._ask(lambda timeout: self._stub.UncordonNode(request, timeout=timeout))

    def confirm_restore(self) -> scheduling_pb2.ConfirmRestoreResponse:
        """Lets the nodes of the cluster whose backup was restored join; repeating it is harmless."""
        request = scheduling_pb2.ConfirmRestoreRequest(request_id=str(uuid.uuid4()))
        return self._ask(lambda timeout: self._stub.ConfirmRestore(request, timeout=timeout))
