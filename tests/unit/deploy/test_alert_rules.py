"""The alert rules ask for metrics and labels that the programs show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from predictor_service.grpc_api.drift_metrics import DriftMetrics
from predictor_service.settings import Settings as PredictorSettings
from scheduler_service.adapters.agents.agent_sessions import AgentSessions
from scheduler_service.core import events
from scheduler_service.core.reasons.reason_texts import REASON_TEXTS
from scheduler_service.grpc_api.metrics import GPU_STATES, Metrics
from scheduler_service.settings import Settings as SchedulerSettings
from tests.support.engine_play import Play

FOLDER = Path(__file__).parents[3] / "deploy" / "prometheus"


@pytest.fixture(scope="module")
def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def shown_metrics() -> set[str]:
    """The names on the pages of a scheduler with a failed job and of a predictor."""
    play = Play("fifo")
    scheduler = Metrics(
        state=lambda: play.engine.state,
        sessions=AgentSessions(),
        now_ms=lambda: play.now_ms,
        storage_failure=lambda: "",
    )
    failed = events.JobFailed(at_ms=1, job_id="j", attempt=1, fence=1, exit_class="gpu_oom")
    scheduler.event_handled(failed, [], duration_ns=1)
    predictor = CollectorRegistry()
    DriftMetrics(predictor)
    page = (generate_latest(scheduler.registry) + generate_latest(predictor)).decode()
    return set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE)) | set(re.findall(r"^(\w+)\{", page, re.MULTILINE))


def test_every_metric_of_a_rule_is_shown(rules: list[dict[str, Any]]) -> None:
    asked = {name for rule in rules for name in re.findall(r"cotenant_\w+", rule["expr"])}
    assert len(asked) >= 6
    assert asked - shown_metrics() == set()


def test_states_and_reasons_that_rules_name_exist(rules: list[dict[str, Any]]) -> None:
    text = "\n".join(rule["expr"] for rule in rules)
    assert set(re.findall(r'state="(\w+)"', text)) <= set(GPU_STATES)
    (left_out,) = re.findall(r'reason!~"([A-Z_|]+)"', text)
    assert set(left_out.split("|")) <= REASON_TEXTS.keys()
    assert all(rule["annotations"]["summary"] for rule in rules)


def test_prometheus_looks_where_the_programs_show_their_metrics_by_default() -> None:
    configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in configuration["scrape_configs"]}
    assert jobs["cotenant-scheduler"] == [SchedulerSettings().metrics_address]
    assert jobs["cotenant-predictor"] == [PredictorSettings().metrics_address]
    assert [(FOLDER / name).is_file() for name in configuration["rule_files"]] == [True]
