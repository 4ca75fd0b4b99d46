"""The fake agent ends when a test ends, at whichever moment that is."""

from __future__ import annotations

from cotenant.v1 import node_agent_pb2
from tests.support.fake_agent import FakeAgent
from tests.support.fake_scheduler import FakeScheduler


class LeavingWhileItDials(FakeAgent):
    """Is told to end between its look whether it is and the stream that could be broken."""

    def _hello(self) -> node_agent_pb2.Hello:
        self._closing.set()
        self.cut()
        return super()._hello()


def test_a_fake_agent_that_is_told_to_end_while_it_dials_ends_at_once() -> None:
    """It stayed connected, and its test waited for 90 seconds."""
    with FakeScheduler() as scheduler, LeavingWhileItDials(scheduler.address) as agent:
        agent._thread.join(timeout=30)
        assert not agent._thread.is_alive()
