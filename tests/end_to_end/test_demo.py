"""The demo as a new user runs it, shortened; and the graphs that it brings along."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest

from cotenant import process_tree
from cotenant.graph_file import graph_sha256, read_graph
from tests.support.callers import code_of_empty_call
from tests.support.cases import sampled
from tests.support.loaded_programs import run_program
from tests.support.real_cluster import COTENANT, ROOT

# Of the predictor and of the scheduler.
READS = ("/cotenant.v1.PredictionService/ListDevices", "/cotenant.v1.SchedulingService/ListJobs")

NETWORKS = ["resnet", "mlp", "lstm"]
PATIENCE_S = 1_200.0
"""A minute and a half of two cores that nothing else uses."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]


def test_the_demo_loses_nothing_and_leaves_nothing() -> None:
    command = [*COTENANT, "demo", "--fast", "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert [check["claim"] for check in report["checks"] if not check["holds"]] == []
    assert len(report["jobs"]) >= 6
    assert_calibrated_as_far_as_others_let_it(report["calibration"])
    assert report["crash"]["jobs_before"] == len(report["jobs"])
    assert report["processes_left"] == []
    assert report["shared"]["makespan_ms"] > 0
    assert report["exclusive"]["basis"].startswith("computed")
    quantities = {row["quantity"] for row in report["comparisons"] if row["measured"] is not None}
    assert {"memory_bytes", "utilization_ratio", "step_ms", "slowdown_ratio"} <= quantities


def assert_calibrated_as_far_as_others_let_it(calibration: dict[str, Any]) -> None:
    """Within its minute: beside other tests that may hold fewer networks, and on a very busy machine none."""
    assert calibration["calibrated"] or re.search("within [69]0 s", calibration["cause"]), calibration["cause"]
    if calibration["calibrated"]:
        measured = list(calibration["anchors_step_ms"])
        assert measured
        assert measured == NETWORKS[: len(measured)]
        assert calibration["foreign_load"] or measured == NETWORKS


@pytest.mark.parametrize("moment", sampled(["Calibrating the devices", r" ended; (?!nothing)\S"], 1))
def test_a_demo_refuses_strangers_and_leaves_nothing_when_it_is_interrupted(moment: str) -> None:
    """While its agent measures devices in every run; in `make test-all` also once its first job runs."""
    # What earlier tests of this worker started and keep is none that the demo left.
    staying = {process.pid for process in process_tree.descendants(os.getpid())}
    process_tree.adopt_orphans()
    demo = subprocess.Popen([*COTENANT, "demo", "--fast"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    refusals: list[grpc.StatusCode] = []
    try:
        for line in demo.stdout:
            if found := re.search(r"predictor (\S+), scheduler (\S+)$", line.strip()):
                refusals = [refusal(address, method) for address, method in zip(found.groups(), READS, strict=True)]
            if re.search(moment, line):
                break
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=PATIENCE_S)
    finally:
        left = process_tree.wait_until_alone(70_000, staying=staying)
        process_tree.kill_all(left)
        process_tree.adopt_orphans(wanted=False)
    assert demo.returncode == 130
    assert refusals == [grpc.StatusCode.UNAUTHENTICATED] * 2
    assert [process.command for process in left] == []


def refusal(address: str, method: str) -> grpc.StatusCode:
    """What somebody is told who reaches the port and shows no token."""
    with grpc.insecure_channel(address) as channel:
        return code_of_empty_call(channel, method, None)[0]


@pytest.mark.endurance
def test_a_committed_graph_is_what_the_script_exports(tmp_path: Path) -> None:
    """Those of the other models are compared without the script, in every run (tests/unit/examples)."""
    fresh = tmp_path / "mlp.onnx"
    arguments = ["--model", "mlp", "--export", str(fresh)]
    done = run_program("examples.training.train", arguments, folder=ROOT, environment=os.environ, timeout_s=300)
    assert done.returncode == 0, done.stderr
    committed = read_graph(ROOT / "examples/jobs/graphs/mlp.onnx")
    assert graph_sha256(read_graph(fresh)) == graph_sha256(committed)
