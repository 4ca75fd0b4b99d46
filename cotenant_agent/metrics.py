"""Counters of the agent, served over plain HTTP on request."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from cotenant.addresses import split_address
from cotenant_agent.errors import SettingsError


class AgentMetrics:
    """One registry per agent, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.heartbeats = Counter("cotenant_agent_heartbeats", "Heartbeats sent.", registry=self.registry)
        self.conversations = Counter("cotenant_agent_conversations", "Streams opened.", registry=self.registry)
        self.refusals = Counter("cotenant_agent_refusals", "Orders refused.", ["code"], registry=self.registry)
        self.joins_refused = Counter(
            "cotenant_agent_joins_refused",
            "Times the scheduler let this agent not in.",
            ["code"],
            registry=self.registry,
        )
        self.ends = Counter("cotenant_agent_attempt_ends", "Ended attempts.", ["exit_class"], registry=self.registry)
        self.running = Gauge("cotenant_agent_attempts_running", "Attempts that have not ended.", registry=self.registry)

    def serve(self, address: str) -> None:
        """Answer /metrics.

        Args:
            address: host:port.

        Raises:
            SettingsError: another program has the port.
        """
        host, port = split_address(address)
        try:
            start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise SettingsError(
                f"{address} cannot be served: {error.strerror}; give another --metrics-address"
            ) from error
