"""The command line against the real predictor, scheduler and agent."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from cotenant import process_tree
from cotenant.default_policy import DEFAULT_POLICY
from tests.support.agent import prepare_baseline
from tests.support.callers import code_of_empty_call
from tests.support.loaded_programs import load_program
from tests.support.log_schema import read_lines
from tests.support.real_cluster import ROOT, RealCluster, real_cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
JOB_FILE = "examples/jobs/4-mlp.yaml"
GRAPH = "examples/jobs/graphs/mlp.onnx"
STEPS = """
import sys, time
from cotenant import job
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.01)
    job.report(step)
    print(f"step {step}/{sys.argv[1]}", flush=True)
    if job.should_stop():
        job.leave()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    # Another test of this worker may have used processes of its own, whose tracker stays as long as the worker.
    load_program("cotenant")
    staying = {process.pid for process in process_tree.descendants(os.getpid())}
    process_tree.adopt_orphans()
    folder = tmp_path_factory.mktemp("up")
    prepare_baseline(folder / "agent-local")
    with real_cluster(folder) as running:
        yield running
    left = process_tree.wait_until_alone(70_000, staying=staying)
    process_tree.kill_all(left)
    process_tree.adopt_orphans(wanted=False)
    assert [process.command for process in left] == []


def submit_mlp(cluster: RealCluster, *flags: str, steps: int = 60) -> tuple[int, str]:
    """Submits the example job with steps that take a moment: the demo trains them (test_demo)."""
    command = ["python", "-c", STEPS, str(steps)]
    done = cluster.cotenant("submit", JOB_FILE, "--steps", str(steps), *flags, "--", *command)
    assert done.stdout, done.stderr
    return done.returncode, done.stdout


def test_a_job_runs_to_its_end_and_its_log_is_there(cluster: RealCluster) -> None:
    code, out = submit_mlp(cluster, "--name", "first", "--wait", "-o", "json")
    job = json.loads(out)
    assert (code, job["phase"], job["steps_done"]) == (0, "JOB_PHASE_FINISHED", "60")
    assert "step 60/60" in cluster.cotenant("logs", "first", "--tail", "1").stdout
    assert cluster.cotenant("logs", "-f", "first").returncode == 0


def test_a_job_that_fails_says_so_with_its_exit_status(cluster: RealCluster) -> None:
    done = cluster.cotenant("submit", "--name", "broken", "--steps", "5", "--wait", "--", "python", "-c", "1/0")
    assert done.returncode == 7
    assert "ZeroDivisionError" in cluster.cotenant("logs", "broken").stdout


def test_a_running_job_is_listed_explained_and_cancelled(cluster: RealCluster) -> None:
    submit_mlp(cluster, "--name", "long", steps=100_000)
    listed = json.loads(cluster.cotenant("ps", "-o", "json").stdout)["jobs"]
    assert [job["spec"]["name"] for job in listed if job["phase"] not in ENDED] == ["long"]
    explained = json.loads(cluster.cotenant("explain", "long", "-o", "json").stdout)
    assert explained["job"]["spec"]["name"] == "long"
    assert "predicted" in cluster.cotenant("describe", "long").stdout
    assert cluster.cotenant("cancel", "long").returncode == 0
    assert cluster.cotenant("cancel", "long").returncode == 0
    assert cluster.cotenant("logs", "-f", "long").returncode == 8


def test_every_line_that_the_programs_wrote_is_of_one_schema_and_holds_no_secret(cluster: RealCluster) -> None:
    flags = ["--name", "secret", "--env", "TORCH_TOKEN=hunter2", "--steps", "1", "--wait"]
    done = cluster.cotenant("submit", *flags, "--", "python", "-c", "pass")
    assert done.returncode == 0, done.stderr
    for program, file in (("predictor", "predictor"), ("scheduler", "scheduler"), ("agent", "agent-local")):
        text = (cluster.state_dir / "logs" / f"{file}.log").read_text()
        assert read_lines(text, program)
        assert "hunter2" not in text


ENDED = ("JOB_PHASE_FINISHED", "JOB_PHASE_FAILED", "JOB_PHASE_CANCELLED")


def test_the_device_and_its_limits_are_shown(cluster: RealCluster) -> None:
    [gpu] = json.loads(cluster.cotenant("gpus", "-o", "json").stdout)["gpus"]
    assert (gpu["device"], gpu["memory_bytes"]) == ("cpu-standin", str(2 * 2**30))
    assert "watchdog" in cluster.cotenant("nodes").stdout


def test_the_running_predictor_answers_with_intervals(cluster: RealCluster) -> None:
    done = cluster.cotenant("predict", GRAPH, "--batch-size", "64", "-o", "json")
    answer = json.loads(done.stdout)
    assert done.returncode == 0
    memory = answer["memory_bytes"]
    assert memory["lower"] <= memory["value"] <= memory["upper"] <= memory["upper_99"] * 1.0001
    assert int(answer["largest_batch_size_that_fits"]) > 64


def test_a_batch_that_cannot_fit_exits_with_four(cluster: RealCluster) -> None:
    done = cluster.cotenant("predict", GRAPH, "--batch-size", "1000000")
    assert done.returncode == 4
    assert "DOES NOT FIT: " in done.stdout


def test_what_up_keeps_is_found_without_naming_a_folder(cluster: RealCluster, tmp_path: Path) -> None:
    backed_up = cluster.cotenant("backup", str(tmp_path / "monday"))
    assert json.loads(backed_up.stdout)["last_sequence"] > 0, backed_up.stderr
    assert '"NodeJoined"' in cluster.cotenant("export-log").stdout
    assert "promoted" in cluster.cotenant("models", "list").stdout
    assert cluster.cotenant("profiles", "status").returncode == 0


def test_the_doctor_finds_the_services(cluster: RealCluster) -> None:
    findings = json.loads(cluster.cotenant("doctor", "-o", "json").stdout)["findings"]
    states = {finding["check"]: finding["state"] for finding in findings}
    assert (states["scheduler"], states["predictor"], states["nodes"]) == ("ok", "ok", "ok")


def test_policies_are_listed_and_one_is_in_use(cluster: RealCluster) -> None:
    policies = json.loads(cluster.cotenant("policies", "list", "-o", "json").stdout)["policies"]
    assert {"fifo", "horus"} <= {policy["name"] for policy in policies}
    assert [policy["name"] for policy in policies if policy["active"]] == [DEFAULT_POLICY]


def test_a_prediction_needs_no_service(tmp_path: Path) -> None:
    places = {"XDG_CONFIG_HOME": str(tmp_path), "COTENANT_STATE_DIR": str(tmp_path / "state")}
    no_cluster = RealCluster(process=None, environment={**os.environ, **places})  # type: ignore[arg-type]
    done = no_cluster.cotenant(
        "predict", str(ROOT / GRAPH), "--batch-size", "64", "--offline", "-o", "json", timeout_s=300
    )
    assert (done.returncode, json.loads(done.stdout)["fits"]) == (0, True), done.stderr
    assert "taking over the models that come with the program" in done.stderr
    done = no_cluster.cotenant(
        "predict", str(ROOT / GRAPH), "--batch-size", "64", "--device", "a100", "--offline", "-o", "json", timeout_s=300
    )
    memory = json.loads(done.stdout)["memory_bytes"]
    assert (memory["level"], memory["range_not_calibrated"]) == ("ESTIMATE_LEVEL_GRAPH", True), done.stderr


def test_a_dry_run_shows_what_is_predicted_of_the_job(cluster: RealCluster) -> None:
    done = cluster.cotenant("submit", "--dry-run", JOB_FILE)
    assert done.returncode == 0, done.stderr
    assert "on cpu-standin:" in done.stdout
    assert "step time" in done.stdout


def test_who_submitted_is_noted_and_only_this_account_gets_in(cluster: RealCluster) -> None:
    name = pwd.getpwuid(os.geteuid()).pw_name
    submitted = cluster.cotenant("submit", "--name", "noted", "--steps", "1", "-o", "name", "--", "python", "-V")
    audited = cluster.cotenant("audit", "-o", "json")
    lines = [json.loads(line) for line in audited.stdout.splitlines()]
    found = [line for line in lines if line["about"] == submitted.stdout.strip()]
    assert [(line["role"], line["name"], line["address"]) for line in found] == [("operator", name, "unix")]
    access = cluster.state_dir / "access"
    assert access.stat().st_mode & 0o777 == 0o700
    for service in ("SCHEDULER", "PREDICTOR"):
        with grpc.insecure_channel(cluster.environment[f"COTENANT_{service}"]) as channel:
            method = "/cotenant.v1.SchedulingService/ListJobs"
            if service == "PREDICTOR":
                method = "/cotenant.v1.PredictionService/ListDevices"
            assert code_of_empty_call(channel, method, None)[0] is grpc.StatusCode.UNAUTHENTICATED
    with_token = cluster.cotenant("ps", "-o", "name", "--token-file", str(access / "operator.token"))
    assert submitted.stdout.strip() in with_token.stdout, with_token.stderr
