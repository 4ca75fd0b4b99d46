"""What the page says of idle GPUs and of tenants: the figures by which an operator sees who waits for what."""

from __future__ import annotations

from prometheus_client import generate_latest

from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.core import events, queue_events
from scheduler_service.core.queue.tenants import TenantRule, TenantRules
from scheduler_service.grpc_api.metrics import Metrics
from tests.support.engine_play import Play


def page(play: Play, name: str) -> dict[str, float]:
    """Label -> value of one gauge, without zeros."""
    metrics = Metrics(
        state=lambda: play.engine.state,
        sessions=AgentSessions(),
        now_ms=lambda: play.now_ms,
        storage_failure=lambda: "",
    )
    lines = generate_latest(metrics.registry).decode().splitlines()
    found = (line.removeprefix(f"{name}{{").split("}") for line in lines if line.startswith(f"{name}{{"))
    return {label.split('"')[1]: float(value) for label, value in found if float(value)}


def test_idle_gpus_of_a_cordoned_node_are_not_counted_as_free() -> None:
    play = Play("fifo", nodes=2, gpus=2)
    play.submit("j0")
    assert page(play, "cotenant_scheduler_gpus") == {"free": 3, "allocated": 1}
    for node_id in ("n0", "n1"):
        play.tell(queue_events.NodeCordoned, node_id=node_id)
    assert page(play, "cotenant_scheduler_gpus") == {"cordoned": 3, "allocated": 1}


def test_tenants_are_counted_by_their_rules_and_all_others_together() -> None:
    play = Play("fifo", gpus=4)
    assert not page(play, "cotenant_scheduler_tenant_gpus")
    rules = TenantRules(rules={"vision": TenantRule(weight=3), "idle": TenantRule()}, half_life_ms=10**12)
    play.tell(queue_events.TenantsChosen, rules=rules)
    for number, (tenant, gpus) in enumerate((("vision", 2), ("someone", 1), ("else", 1))):
        play.submit(f"j{number}", tenant=tenant, gpus=gpus, global_batch_size=gpus)
    play.tell(events.TimerFired, after_ms=10_000)
    assert page(play, "cotenant_scheduler_tenant_gpus") == {"vision": 2, "default": 2}
    had_s = page(play, "cotenant_scheduler_tenant_gpu_seconds")
    assert (had_s["vision"], had_s["default"]) == (24, 21)
